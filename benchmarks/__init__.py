"""Side-by-side measurements against the raw PyTorch loop and what else a user could pick.

`python -m benchmarks` runs them all, `python -m benchmarks NAME` one; a file is a subject.
"""
