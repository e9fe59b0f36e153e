"""Statistics: intervals, and verdicts on which of several things takes less; they know no runs."""
