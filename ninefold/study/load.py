"""How much of the CPU time other programs used during a turn."""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from pathlib import Path

IDLE = (3, 4)  # fields of a CPU in /proc/stat: idle, and waiting for a disk
PROCESS_CLOCK = 2  # of the clocks that Linux has for each process: the CPU time of its threads


class NeighborLoad:
    """Measures what other programs used of the CPUs that this process may use (Linux).

    It is the time in which these CPUs were not idle, time stolen by other virtual machines
    included, less what our own processes used.
    """

    def __init__(self) -> None:
        self._processes = frozenset[int]()
        self._before: tuple[float, float, int] | None = None
        self._began = 0.0

    def begin(self, processes: Sequence[int]) -> None:
        """Count from now on.

        processes: ids of our own besides this one, alive until `share` is called.
        """
        self._processes = frozenset((os.getpid(), *processes))
        self._before, self._began = _used(self._processes), time.monotonic()

    def share(self) -> float | None:
        """Return the share of the CPU time since `begin`, 0 to 1; None where it is not known."""
        after, seconds = _used(self._processes), time.monotonic() - self._began
        if self._before is None or after is None or not seconds:
            return None
        (idle, own, cpus), (idle_now, own_now, _) = self._before, after
        whole = seconds * cpus
        return min(max((whole - (idle_now - idle) - (own_now - own)) / whole, 0.0), 1.0)


def _used(processes: frozenset[int]) -> tuple[float, float, int] | None:
    """Seconds that CPUs were idle, and that we used, and the number of CPUs; None if unknown."""
    try:
        names = {f"cpu{index}" for index in os.sched_getaffinity(0)}
        lines = [line.split() for line in Path("/proc/stat").read_text().splitlines()]
        own = sum(time.clock_gettime(~pid << 3 | PROCESS_CLOCK) for pid in processes)
    except (OSError, OverflowError, AttributeError):
        return None
    cpus = [line[1:] for line in lines if line and line[0] in names]
    idle = sum(int(cpu[field]) for cpu in cpus for field in IDLE) / os.sysconf("SC_CLK_TCK")
    return idle, own, len(cpus)
