"""What disturbs a turn: how much of the CPU time other programs used, and what slowed its GPU."""

from __future__ import annotations

import functools
import os
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

from ninefold.machine import gpu_driver, quota

STAT = Path("/proc/stat")
IDLE = (3, 4)  # fields of a CPU in /proc/stat: idle, and waiting for a disk
PROCESS_CLOCK = 2  # of the clocks that Linux has for each process: the CPU time of its threads
# NVML's reasons for lower clocks: the power limit; heat, and the brakes of both.
LIMITS = {
    "it ran at its power limit, as GPUs do under full load": 0x04,
    "heat or a brake of its power held its clocks down": 0xE8,
}


class NeighborLoad:
    """Measures what other programs used of the CPU time that this process may use (Linux).

    It is the time in which its CPUs were not idle, time stolen by other virtual machines included,
    less what our own processes used. Under a quota this process may use no more than the quota:
    others are then the programs in its group, and those of the host where they leave less than the
    quota.
    """

    def __init__(self, processes: Sequence[int]) -> None:
        """Count from now on. processes: ids of our own besides this one."""
        self._before, self._began = _used([os.getpid(), *processes]), time.monotonic()

    def share(self, processes: Sequence[int]) -> float | None:
        """Return the share of the CPU time since then, 0 to 1; None where it is not known, as
        where one of our own has ended since.

        processes: our own ones now.
        """
        before, after = self._before, _used([os.getpid(), *processes])
        seconds = time.monotonic() - self._began
        if before is None or after is None or not seconds:
            return None
        if not before.own.keys() <= after.own.keys():
            return None
        whole = seconds * after.cpus
        busy = max(whole - (after.idle - before.idle), after.group - before.group)
        ours = sum(used - before.own.get(pid, 0.0) for pid, used in after.own.items())
        return min(max((busy - ours) / whole, 0.0), 1.0)


class _Used(NamedTuple):
    """CPU time so far, in seconds.

    idle: of the CPUs that this process may use. own: that each process used, this one with its
    children that have ended, as the workers of a loader after a pass. group: that all in the
    control group with a quota used; 0 without one. cpus: as many as this process may use together.
    """

    idle: float
    own: dict[int, float]
    group: float
    cpus: float


def _used(processes: Sequence[int]) -> _Used | None:
    """What is used until now; None if unknown. A process that has ended is missing."""
    own, limit = dict[int, float](), quota()
    try:
        names = {f"cpu{index}" for index in os.sched_getaffinity(0)}
        lines = [line.split() for line in STAT.read_text().splitlines()]
        for pid in processes:
            with suppress(OSError):
                own[pid] = time.clock_gettime(~pid << 3 | PROCESS_CLOCK)
        children = os.times()
        own[os.getpid()] += children.children_user + children.children_system
        group = 0.0 if limit is None else limit.used()
    except (OSError, OverflowError, AttributeError):
        return None
    cpus = [line[1:] for line in lines if line and line[0] in names]
    idle = sum(int(cpu[field]) for cpu in cpus for field in IDLE) / os.sysconf("SC_CLK_TCK")
    most = len(cpus) if limit is None else min(limit.cpus, len(cpus))
    return _Used(idle, own, group, most)


def others_on_gpus(since: float, is_ours: Callable[[int], bool]) -> bool:
    """Return whether processes that are not ours computed since then on a GPU where ours did.

    NVIDIA's driver samples that a few times in a second. False where the driver cannot tell:
    under WSL, for parts of a GPU (MIG), and in a container with process ids of its own.
    since: Unix time. is_ours: whether the process with this id is ours.
    """
    for computed in _computed_on_gpus(since) if gpu_driver() else ():
        ours = {pid for pid in computed if is_ours(pid)}
        if ours and computed - ours:
            return True
    return False


def _computed_on_gpus(since: float) -> Iterator[set[int]]:
    """Of each GPU of this host, the ids of processes that have computed there since then."""
    import pynvml

    with suppress(pynvml.NVMLError):  # there is no library
        pynvml.nvmlInit()
        for index in range(pynvml.nvmlDeviceGetCount()):
            with suppress(pynvml.NVMLError):  # it has no sample, or tells none
                gpu: Any = pynvml.nvmlDeviceGetHandleByIndex(index)
                found = pynvml.nvmlDeviceGetProcessUtilization(gpu, int(1e6 * since))
                yield {each.pid for each in found if each.smUtil}


def clock_limits(uuids: Iterable[str]) -> list[str]:
    """What lowers the clocks of GPUs now, as their driver says; empty where it cannot tell."""
    seen = 0
    for uuid in uuids:
        with suppress(Exception):  # of many types: no library, no such GPU, not supported by it
            nvml, gpu = nvml_of(uuid)
            seen |= int(nvml.nvmlDeviceGetCurrentClocksEventReasons(gpu))
    return [said for said, reasons in LIMITS.items() if seen & reasons]


@functools.cache
def nvml_of(uuid: str) -> tuple[Any, Any]:
    """NVML and its handle of a GPU: CUDA_VISIBLE_DEVICES changes torch's indices, no UUID."""
    import pynvml

    pynvml.nvmlInit()
    return pynvml, pynvml.nvmlDeviceGetHandleByUUID(f"GPU-{uuid}")


def parent_of(pid: int) -> int | None:
    """The id of a process's parent; None where it has ended, or is of another container."""
    try:
        return int(Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()[1])
    except OSError:
        return None
