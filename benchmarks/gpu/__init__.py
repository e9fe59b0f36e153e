"""Checks that only a GPU can answer: `python -m benchmarks.gpu`, see benchmarks/gpu/command.py."""
