"""Statistics: intervals, and verdicts on which of several things takes less; they know no runs.

`statistics.compare` gives the verdict on every two, `best.standing` what is known of the best.
The first takes values by name and round, the second their `differences`, which pair them; both the
`Settings` of `verdicts`. `student`, `holm` and `best` hold the methods.
"""
