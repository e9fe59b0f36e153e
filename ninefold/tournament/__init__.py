"""Takes turns: who trains next and for how long, which turns count, and when it is enough.

`plan` orders turns, `budget` divides the time, `rounds` plays them, `taken` holds them; what they
show is said in `ninefold.answer`. What trains is a `contestant`: the ranks of a configuration
(`ninefold.launch.turns`), a function of this process (`ninefold.api.session`) or a command
(`ninefold.bench.rounds`).
"""
