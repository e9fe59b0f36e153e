"""Statistics of a report: means, intervals, verdicts on pairs. Pure functions of `data`."""
