"""How much of the CPU time other programs used while cells took their turns."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

BUSY = (0, 1, 2, 5, 6, 7)  # fields of /proc/stat: user, nice, system, irq, softirq, steal
OWN = (11, 12)  # fields of /proc/PID/stat after the name: user, system


class Load:
    """Counts the CPU time of other programs on the CPUs that this process may use (Linux).

    It is what /proc/stat counts as busy on these CPUs, time stolen by other virtual machines
    included, less what our own processes used.

    others: their share of the CPU time so far, 0 to 1; None where it is not known.
    """

    def __init__(self) -> None:
        self._others = self._whole = 0.0
        self._known = True

    @property
    def others(self) -> float | None:
        if not self._known or not self._whole:
            return None
        return min(max(self._others / self._whole, 0.0), 1.0)

    @contextmanager
    def during(self, processes: Sequence[int]) -> Iterator[None]:
        """Count meanwhile. processes: ids of our own, without this one, alive at both ends."""
        before, began = _counts(processes), time.monotonic()
        yield
        after, seconds = _counts(processes), time.monotonic() - began
        if before is None or after is None:
            self._known = False
            return
        (busy, own, cpus), (busy_now, own_now, _) = before, after
        self._others += (busy_now - busy) - (own_now - own)
        self._whole += seconds * cpus


def _counts(processes: Sequence[int]) -> tuple[float, float, int] | None:
    """Seconds that CPUs were busy, and that we used, and the number of CPUs; None if unknown."""
    try:
        ours = os.sched_getaffinity(0)
        lines = [line.split() for line in Path("/proc/stat").read_text().splitlines()]
        own = [
            Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
            for process in processes
        ]
    except (OSError, AttributeError):
        return None
    tick = os.sysconf("SC_CLK_TCK")
    names = {f"cpu{index}" for index in ours}
    cpus = [line[1:] for line in lines if line and line[0] in names]
    busy = sum(int(line[field]) for line in cpus for field in BUSY) / tick
    used = sum(int(fields[field]) for fields in own for field in OWN) / tick
    return busy, used + time.process_time(), len(cpus)
