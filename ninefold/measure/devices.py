"""State, load and energy of the devices of a run: GPUs by NVML, CPUs by Linux."""

from __future__ import annotations

import functools
import math
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch

from ninefold.engine.clock import Meter
from ninefold.engine.parallel import RankContext

POWERCAP = Path("/sys/class/powercap")


def meter(context: RankContext, root: Path = POWERCAP) -> Meter:
    """The meter of this process: of its GPUs, or of the host's CPU on the host's first process."""
    if context.gpus:
        counted = Meter("nvml", lambda: sum(gpu_joules(index) for index in context.gpus))
    elif context.local_rank == 0:
        counted = Meter("rapl", Rapl(root))
    else:
        return Meter("rapl", lambda: 0.0)  # the host's first process counts it
    return Meter() if math.isnan(counted.joules()) else counted


class Rapl:
    """Joules that all CPU packages of this host used since this object was made.

    They are Linux's powercap counters, of the whole packages, whichever process uses them.
    Usually only root may read them. A counter wraps around every hour or so, and must be read
    more often than that.
    """

    def __init__(self, root: Path = POWERCAP) -> None:
        self._packages = [path.parent for path in root.glob("intel-rapl:*/name") if _package(path)]
        self._last: dict[Path, int] = {}
        self._joules = 0.0

    def __call__(self) -> float:
        if not self._packages:
            return math.nan
        try:
            for package in self._packages:
                now = _number(package / "energy_uj")
                used = now - self._last.get(package, now)
                if used < 0:
                    used += _number(package / "max_energy_range_uj")
                self._last[package] = now
                self._joules += used / 1e6
        except (OSError, ValueError):
            return math.nan
        return self._joules


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


def gpu_joules(index: int) -> float:
    """Energy that a GPU used since its driver was loaded, from Volta on; NaN: not known."""
    return _ask(index, lambda nvml, gpu: nvml.nvmlDeviceGetTotalEnergyConsumption(gpu)) / 1000


def _ask(index: int, question: Callable[[Any, Any], float]) -> float:
    try:
        return float(question(*_gpu(index)))
    except Exception:  # of many types: no library, no driver, no such GPU, not supported by it
        return math.nan


@functools.cache
def _gpu(index: int) -> tuple[Any, Any]:
    """NVML and its handle of a GPU, by UUID: CUDA_VISIBLE_DEVICES changes torch's indices."""
    import pynvml

    pynvml.nvmlInit()
    uuid = torch.cuda.get_device_properties(index).uuid
    return pynvml, pynvml.nvmlDeviceGetHandleByUUID(f"GPU-{uuid}")


def _package(name: Path) -> bool:
    """Return whether a counter is a package's, not of a part (core, dram) or the platform."""
    try:
        return name.read_text().startswith("package")
    except (OSError, ValueError):
        return False


def _number(path: Path) -> int:
    return int(path.read_text())
