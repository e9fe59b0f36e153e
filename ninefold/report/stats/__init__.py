"""What a report measures and compares of runs, by the methods of ninefold.stats; pure functions."""
