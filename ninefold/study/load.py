"""How much of the CPU time other programs used while cells took their turns."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

BUSY = (0, 1, 2, 5, 6, 7)  # fields of /proc/stat: user, nice, system, irq, softirq, steal
# Fields of /proc/PID/stat after the name: the parent; user and system time of the process, and of
# its children that have ended.
PARENT, OWN = 1, (11, 12, 13, 14)


class NeighborLoad:
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
        """Count meanwhile.

        processes: ids of our own, alive at both ends. This one, and what any of them has started,
        are our own as well.
        """
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
        own = [fields for _, fields in _family((os.getpid(), *processes))]
    except (OSError, AttributeError, KeyError):
        return None
    tick = os.sysconf("SC_CLK_TCK")
    names = {f"cpu{index}" for index in ours}
    cpus = [line[1:] for line in lines if line and line[0] in names]
    busy = sum(int(line[field]) for line in cpus for field in BUSY) / tick
    used = sum(int(fields[field]) for fields in own for field in OWN) / tick
    return busy, used, len(cpus)


def _family(processes: Sequence[int]) -> Iterator[tuple[int, list[str]]]:
    """Processes with what they have started, each with the fields of its /proc/PID/stat.

    Raises KeyError if one of `processes` is not there.
    """
    found: dict[int, list[str]] = {}
    for path in Path("/proc").iterdir():
        if path.name.isdigit():
            with suppress(OSError):  # it has ended meanwhile
                text = (path / "stat").read_text()
                found[int(path.name)] = text.rpartition(")")[2].split()
    children: dict[int, list[int]] = {}
    for process, fields in found.items():
        children.setdefault(int(fields[PARENT]), []).append(process)
    waiting, seen = list(processes), set[int]()
    while waiting:
        if (process := waiting.pop()) not in seen:
            seen.add(process)
            waiting += children.get(process, ())
            yield process, found[process]
