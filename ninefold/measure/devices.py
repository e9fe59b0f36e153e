"""Load of the devices of a run: GPUs by NVML, CPUs by the time of the process."""

from __future__ import annotations

import math
import os
import time
from collections.abc import Callable, Sequence
from typing import Any

import torch

from ninefold.result import ON_GPU
from ninefold.tournament.neighbors import clock_limits, nvml_of, others_on_gpus, parent_of

OTHERS = ON_GPU + "other programs computed there."


class Load:
    """Load of this process on its devices while the inner clock runs.

    Of each of `gpus` the mean of what its driver says, at ends of the clock (log points), of the
    second before: that is the share of time in which any kernel ran, other programs' included.
    Looked at where the clock has run for that second, but for breaks shorter than BREAK, and not
    more often. Of the process itself, all its threads: CPU seconds for each second of the clock.
    """

    PERIOD, BREAK = 1.0, 0.05  # seconds: a driver looks back a sixth of a second to a second

    def __init__(self, gpus: Sequence[int] = ()) -> None:
        self._seen: dict[int, list[float]] = {index: [] for index in gpus}
        self._cpu = self._seconds = 0.0
        self._cpu_before = self._since = self._steady = self._ended = -math.inf

    def begin(self) -> None:
        """The clock runs from here on."""
        self._since, self._cpu_before = time.perf_counter(), time.process_time()
        if self._since - self._ended > self.BREAK:
            self._steady = self._since

    def end(self) -> None:
        """The clock stands from here on."""
        self._ended = time.perf_counter()
        self._cpu += time.process_time() - self._cpu_before
        self._seconds += self._ended - self._since
        if self._seen and self._ended - self._steady >= self.PERIOD:
            self._steady = self._ended  # the next look is a period later
            for index, seen in self._seen.items():
                seen.append(gpu_load(index) / 100)

    @property
    def cpu(self) -> float:
        """CPU seconds of this process in a second of the clock; NaN: it ran less than PERIOD."""
        return self._cpu / self._seconds if self._seconds >= self.PERIOD else math.nan

    @property
    def gpus(self) -> list[float]:
        """The load of each GPU, 0 to 1; NaN: not known."""
        return [sum(seen) / len(seen) if seen else math.nan for seen in self._seen.values()]


def gpu_load(index: int) -> float:
    """Percent of the last second or less, as its driver samples, in which a GPU was at work."""
    return _ask(index, lambda nvml, gpu: nvml.nvmlDeviceGetUtilizationRates(gpu).gpu)


def power_limit(index: int) -> float:
    """Watts that a GPU may take; NaN: not known, as of a part of one (MIG)."""
    return _ask(index, lambda nvml, gpu: nvml.nvmlDeviceGetEnforcedPowerLimit(gpu) / 1000)


def disturbances(gpus: Sequence[int], since: float) -> list[str]:
    """Notes on what has slowed these GPUs since then, in Unix time, by their driver."""
    beside = [OTHERS] if gpus and others_on_gpus(since, is_sibling) else []
    return beside + [f"{ON_GPU}{said}." for said in clock_limits(map(_uuid, gpus))]


def is_sibling(pid: int) -> bool:
    """Whether a process is this one, or one of another cell: of the same parent."""
    return pid == os.getpid() or parent_of(pid) == os.getppid()


def _ask(index: int, question: Callable[[Any, Any], float]) -> float:
    try:
        return float(question(*nvml_of(_uuid(index))))
    except Exception:  # of many types: no library, no driver, no such GPU, not supported by it
        return math.nan


def _uuid(index: int) -> str:
    return str(torch.cuda.get_device_properties(index).uuid)
