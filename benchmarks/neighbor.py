"""Keeps one core busy for a share of the time, as a neighbor on the same machine does.

    python -m benchmarks.neighbor --share 0.5 --seconds 120 &

To see what a study can say on a machine that is not quiet.
"""

from __future__ import annotations

import argparse
import os
import random
import time


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.neighbor", description=__doc__)
    parser.add_argument("--share", type=float, default=0.5, help="of the time that it is busy")
    parser.add_argument("--period", type=float, default=1.0, help="mean seconds of busy and idle")
    parser.add_argument("--seconds", type=float, default=120, help="until it ends")
    given = parser.parse_args()
    os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
    draw, end = random.Random(0), time.monotonic() + given.seconds
    while (now := time.monotonic()) < end:
        busy = draw.expovariate(1 / (given.share * given.period))
        while time.monotonic() < min(now + busy, end):
            pass
        time.sleep(draw.expovariate(1 / max((1 - given.share) * given.period, 1e-9)))


if __name__ == "__main__":
    main()
