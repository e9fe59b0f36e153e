"""Reads what a report rests on: runs, curves, numerics and conditions of a sweep or a recording."""
