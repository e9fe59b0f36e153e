"""The command `python -m benchmarks.gpu`, see benchmarks/gpu/command.py."""

from __future__ import annotations

import sys

if __name__ == "__main__":  # processes that a check starts import this file too
    from benchmarks.gpu.command import main

    sys.exit(main())
