"""How fast the machine is just now: the seconds that a fixed piece of work takes."""

from __future__ import annotations

import hashlib
import math
import time
from concurrent.futures import ThreadPoolExecutor
from statistics import median
from typing import Any

import torch
from torch import Tensor

from ninefold.measure import nvml
from ninefold.parallel import Parallel, Place, device_names, gather

LEAST = 3  # units: fewer have no middle
BYTES, TIMES = 1 << 20, 8  # hashed in a unit of a CPU: longer than a slice of time it may lose
SIDE, PRODUCTS = 2048, 50  # of the matrices in a unit of a GPU


class Probe:
    """Takes the same work in every cell of a machine, whatever its processes and precision.

    On a CPU each thread that a run has there hashes bytes, on a GPU float16 matrices are
    multiplied. What counts is the median unit of the slowest: a unit is long enough for a
    neighbor's time slices to show in most of them, and one that was interrupted once is not.

    limit: seconds that it goes on for, each time; 0: nothing is taken. seconds: of a unit, in the
    order of `take`. states: of the GPUs of the run then, float64 [GPUs, 3], see `nvml.state`.
    """

    def __init__(self, limit: float, parallel: Parallel, place: Place) -> None:
        self.seconds: list[float] = []
        self.states: list[Tensor] = []
        self._limit = limit
        self._parallel = parallel
        self._place = place

    def take(self) -> None:
        """Every process must call it. It draws no random number and leaves no memory taken."""
        if not self._limit:
            return
        place = self._place
        place.synchronize()
        self._all(torch.zeros(()))  # they begin together
        if place.gpus:
            seconds, states = on_gpus(place.gpus, self._limit)
        else:
            seconds, states = on_cpu(torch.get_num_threads(), self._limit), []
        self.seconds.append(float(self._all(torch.tensor(seconds)).max()))
        if states:
            self.states.append(self._all(torch.tensor(states, dtype=torch.float64)).flatten(0, 1))

    @property
    def gpus(self) -> list[dict[str, Any]]:
        """As in a result: what NVML said before and after training; None where it said nothing."""
        if len(self.states) < 2:
            return []
        names = device_names(self._place)
        return [
            {"index": index, "name": name, "before": _told(before), "after": _told(after)}
            for index, (name, before, after) in enumerate(
                zip(names, self.states[0].tolist(), self.states[-1].tolist(), strict=True)
            )
        ]

    def _all(self, values: Tensor) -> Tensor:
        return gather(values.to(self._place.device), self._parallel, self._place)


def on_cpu(threads: int, limit: float) -> float:
    """Seconds of the median unit of the slowest of so many threads of hashing, side by side."""
    with ThreadPoolExecutor(threads) as pool:
        return max(pool.map(hashing, [limit] * threads))


def hashing(limit: float) -> float:
    """Seconds of the median unit in this thread; hashlib lets the others run meanwhile."""
    data = bytes(BYTES)
    units: list[float] = []
    end = math.inf
    while len(units) <= LEAST or time.perf_counter() < end:
        began = time.perf_counter()
        digest = hashlib.sha256()
        for _ in range(TIMES):
            digest.update(data)
        units.append(time.perf_counter() - began)
        if len(units) == 1:  # what the machine did before may still go on in it: not counted
            end = time.perf_counter() + limit
    return median(units[1:])


def on_gpus(indices: range, limit: float) -> tuple[float, list[list[float]]]:
    """Seconds of the median unit of the slowest GPU, and the state of each while it works."""
    matrices = [
        [torch.ones(SIDE, SIDE, dtype=torch.float16, device=index) for _ in range(3)]
        for index in indices
    ]

    def unit() -> list[Any]:
        events = []
        for index, (one, other, product) in zip(indices, matrices, strict=True):
            with torch.cuda.device(index):
                pair = [torch.cuda.Event(enable_timing=True) for _ in range(2)]
                pair[0].record()
                for _ in range(PRODUCTS):
                    torch.mm(one, other, out=product)
                pair[1].record()
            events.append(pair)
        return events

    def taken(events: list[Any]) -> list[float]:
        for _, last in events:
            last.synchronize()
        return [first.elapsed_time(last) / 1000 for first, last in events]

    taken(unit())  # it chooses kernels and wakes the clocks
    end = time.perf_counter() + limit
    units: list[list[float]] = []
    while len(units) < LEAST or time.perf_counter() < end:
        units.append(taken(unit()))
    last = unit()
    states = [nvml.state(index) for index in indices]  # an idle GPU would be at another clock
    taken(last)
    return max(median(of_one) for of_one in zip(*units, strict=True)), states


def _told(row: list[float]) -> dict[str, Any]:
    clock, temperature, bits = (None if math.isnan(value) else int(value) for value in row)
    return {
        "clock_mhz": clock,
        "temperature_c": temperature,
        "throttle": None if bits is None else nvml.reasons(bits),
    }
