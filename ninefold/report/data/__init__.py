"""What a report reads: runs, curves, numerics and conditions of a sweep or a recording."""
