"""The drift probe: the seconds that a fixed piece of work takes on this machine right now."""

from __future__ import annotations

import hashlib
import math
import time
from concurrent.futures import ThreadPoolExecutor
from statistics import median
from typing import Any

import torch
from torch import Tensor

from ninefold.engine.parallel import Parallel, Place, device_names, gather
from ninefold.measure.devices import gpu_load, gpu_state, reasons

LEAST = 3  # units of work: one interruption would show in the median of fewer
BYTES, TIMES = 1 << 20, 8  # hashed in a unit on a CPU: it takes longer than a time slice
SIDE, PRODUCTS = 2048, 50  # of the matrices in a unit on a GPU


class Probe:
    """Times the same work in every cell on a machine, whatever its processes and precision.

    On a CPU each thread of the run hashes bytes, on a GPU float16 matrices are multiplied. The
    figure is the median unit of the slowest thread or GPU: a unit is so long that another
    program's time slices show in most units, while a single interruption does not show.

    limit: seconds of work for each `take`; 0: none.
    seconds: of a unit, for each `take`.
    states: of all GPUs of the run, for each `take`: float64 [GPUs, 4], see `devices.gpu_state`,
        and their load before the work of the probe.
    """

    def __init__(self, limit: float, parallel: Parallel, place: Place) -> None:
        self.seconds: list[float] = []
        self.states: list[Tensor] = []
        self._limit = limit
        self._parallel = parallel
        self._place = place

    def take(self) -> None:
        """Run the probe; it draws no random numbers. Every process must call it."""
        if not self._limit:
            return
        place = self._place
        place.synchronize()
        self._all(torch.zeros(()))  # a barrier: they begin together
        if place.gpus:
            seconds, states = on_gpus(place.gpus, self._limit)
        else:
            seconds, states = on_cpu(torch.get_num_threads(), self._limit), []
        self.seconds.append(float(self._all(torch.tensor(seconds)).max()))
        if states:
            self.states.append(self._all(torch.tensor(states, dtype=torch.float64)).flatten(0, 1))

    @property
    def gpus(self) -> list[dict[str, Any]]:
        """`gpus` of a result: what NVML said before and after training; None where it did not."""
        if len(self.states) < 2:
            return []
        names = [name for name in device_names(self._place) if name != "cpu"]
        return [
            {"index": index, "name": name, "before": _row(before), "after": _row(after)}
            for index, (name, before, after) in enumerate(
                zip(names, self.states[0].tolist(), self.states[-1].tolist(), strict=True)
            )
        ]

    def _all(self, values: Tensor) -> Tensor:
        return gather(values, self._parallel, self._place)


def on_cpu(threads: int, limit: float) -> float:
    """Median seconds per unit of work, in the slowest of `threads` concurrent threads."""
    with ThreadPoolExecutor(threads) as pool:
        return max(pool.map(hashing, [limit] * threads))


def hashing(limit: float) -> float:
    """Seconds of the median unit in this thread; hashlib releases Python's lock meanwhile."""
    data = bytes(BYTES)
    units: list[float] = []
    end = math.inf
    while len(units) <= LEAST or time.perf_counter() < end:
        began = time.perf_counter()
        digest = hashlib.sha256()
        for _ in range(TIMES):
            digest.update(data)
        units.append(time.perf_counter() - began)
        if len(units) == 1:  # the first unit does not count: earlier work may still disturb it
            end = time.perf_counter() + limit
    return median(units[1:])


def on_gpus(indices: list[int], limit: float) -> tuple[float, list[list[float]]]:
    """Median seconds per unit of work on the slowest GPU; and for each GPU its state.

    A state is [MHz, °C, throttle bits, load in percent], NaN where it is not known. The load is
    that of before the probe.
    """
    loads = [gpu_load(index) for index in indices]  # of what ran before the probe
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

    taken(unit())  # warm-up: it chooses kernels and raises the clocks
    end = time.perf_counter() + limit
    units: list[list[float]] = []
    while len(units) < LEAST or time.perf_counter() < end:
        units.append(taken(unit()))
    last = unit()
    # Now: an idle GPU runs at another clock.
    states = [[*gpu_state(index), load] for index, load in zip(indices, loads, strict=True)]
    taken(last)
    return max(median(of_one) for of_one in zip(*units, strict=True)), states


def _row(row: list[float]) -> dict[str, Any]:
    clock, temperature, bits, load = (None if math.isnan(value) else int(value) for value in row)
    return {
        "clock_mhz": clock,
        "temperature_c": temperature,
        "load_percent": load,
        "throttle": None if bits is None else reasons(bits),
    }
