"""`ninefold bench`: which of several commands that train with torch takes less time per step.

`inject/` is loaded by the commands' own Python and tells where their steps end, `held` starts a
command and lets it take turns, `guardian` ends what they started, `rounds` is the schedule, and
`summary` says what was found. `revisions` compares commits, `gate` judges, `score` compares scores.
"""
