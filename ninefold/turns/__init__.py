"""What takes turns, and what is found: which of several things trains faster, and how much.

`times` has the one answer of all that takes turns.
"""
