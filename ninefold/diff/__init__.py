"""`ninefold diff`: at which step, and in what, two trainings begin to differ.

`starts` has a command record its first steps by a hook of bench, `compare` finds the first entry
that differs by more than rounding explains, `kinds` says what kind of difference that is, `twice`
what makes two starts equal, `resume` what was not restored.
"""
