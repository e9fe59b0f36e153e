"""The command `python -m benchmarks`, see benchmarks/run.py."""

from __future__ import annotations

import sys

if __name__ == "__main__":  # processes that a contestant starts import this file too
    if sys.argv[1:2] == ["true"]:
        from benchmarks import true

        sys.exit(true.main(sys.argv[2:]))
    if sys.argv[1:2] == ["steps"]:
        from benchmarks import steps

        sys.exit(steps.main(sys.argv[2:]))
    if sys.argv[1:2] == ["scripts"]:
        from benchmarks import scripts

        sys.exit(scripts.main(sys.argv[2:]))
    from benchmarks.run import main

    sys.exit(main())
