"""Joules that the devices of a run use: NVML's counters of GPUs, RAPL's of a CPU."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from ninefold.measure import nvml
from ninefold.parallel import Place

POWERCAP = Path("/sys/class/powercap")


@dataclass(frozen=True)
class Meter:
    """joules: of this process's part of the devices, since some time past; NaN: not known."""

    source: str | None = None
    joules: Callable[[], float] = lambda: math.nan


def meter(place: Place, first_on_host: bool, root: Path = POWERCAP) -> Meter:
    """What counts for this process: its GPUs, or the CPU of the host if it is the first there."""
    if place.gpus:
        counted = Meter("nvml", lambda: sum(nvml.joules(index) for index in place.gpus))
    elif first_on_host:
        counted = Meter("rapl", Rapl(root))
    else:
        return Meter("rapl", lambda: 0.0)  # its devices are counted by another process
    return Meter() if math.isnan(counted.joules()) else counted


class Rapl:
    """Joules of all CPU packages of this host since it was made, by Linux's powercap files.

    They are of the whole packages, whoever uses them. Mostly root alone may read them. A counter
    starts again from 0, every hour or so: it is to be read more often than that.
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


def _package(name: Path) -> bool:
    """Whether it is a package's: not what is within one (core, dram), nor the whole platform's."""
    try:
        return name.read_text().startswith("package")
    except (OSError, ValueError):
        return False


def _number(path: Path) -> int:
    return int(path.read_text())
