"""Models that are not a target of somebody else's library: one file and one yaml for each."""
