"""The command `python -m benchmarks`, see benchmarks/run.py."""

from __future__ import annotations

import sys
from importlib import import_module

COMPARISONS = ("true", "steps", "scripts")  # modules with options of their own

if __name__ == "__main__":  # processes that a contestant starts import this file too
    if sys.argv[1:2] and sys.argv[1] in COMPARISONS:
        sys.exit(import_module(f"benchmarks.{sys.argv[1]}").main(sys.argv[2:]))
    from benchmarks.run import main

    sys.exit(main())
