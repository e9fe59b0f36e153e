"""Statistics: intervals, and verdicts on which of several things takes less; they know no runs.

`statistics.compare` gives the verdict on every two, `statistics.stand` what is known of the best.
Both take values by name and round, and the `Settings` of `verdicts`. `differences` pairs the
values, `student`, `holm` and `best` hold the methods.
"""
