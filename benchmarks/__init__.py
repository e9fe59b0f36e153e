"""Benchmarks in alternating turns against the raw PyTorch loop and other libraries.

`python -m benchmarks` runs all of them, `python -m benchmarks NAME` one; each file is a subject.
"""
