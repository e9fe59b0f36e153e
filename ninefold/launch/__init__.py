"""Start runs in worker processes. Public: `ready.ready`, and `run`'s functions and Outcome.

Imports nothing, because the forkserver's first import imports this package.
"""
