"""Times the link between a run's processes: the latency and the speed of its all-reduces."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median

import torch

from ninefold.parallel import Parallel, Place

SIZES = tuple(4096 * 4**power for power in range(6))  # bytes: 4 KiB to 4 MiB
LEAST = 3  # all-reduces of each size


@dataclass(frozen=True)
class Link:
    """What an all-reduce of s bytes over p processes takes: alpha + 2 (p - 1) / p s / speed.

    alpha_seconds: of a message of no size.
    bytes_per_second: of what each process sends; in a ring that is 2 (p - 1) / p s.
    """

    alpha_seconds: float
    bytes_per_second: float


def time_link(seconds: float, parallel: Parallel, place: Place) -> Link | None:
    """Time all-reduces for so many seconds; None if there is one process, or 0 seconds.

    Every process must call it. Each size is timed at least LEAST times.
    """
    if not seconds or place.world_size == 1:
        return None
    buffers = [torch.zeros(size // 4, device=place.device) for size in SIZES]
    for buffer in buffers:  # the first ones open connections
        parallel.total(buffer)
    taken: list[list[float]] = [[] for _ in SIZES]
    began, going = time.perf_counter(), True
    while going:
        for times, buffer in zip(taken, buffers, strict=True):
            place.synchronize()
            start = time.perf_counter()
            parallel.total(buffer)
            place.synchronize()
            times.append(time.perf_counter() - start)
        over = time.perf_counter() - began >= seconds and len(taken[0]) >= LEAST
        # All processes end with the same round: where one is over, all are.
        going = not float(parallel.total(torch.tensor(float(over), device=place.device)))
    return fitted([median(times) for times in taken], place.world_size)


def fitted(seconds: Sequence[float], processes: int) -> Link:
    """Return the link on which all-reduces of SIZES take so many seconds.

    By least squares of the relative errors, so that small messages, which show the latency, count
    as much as large ones, which show the speed.
    """
    sent = [2 * (processes - 1) / processes * size for size in SIZES]
    rows = [(1 / t, w / t) for t, w in zip(seconds, sent, strict=True)]
    aa = sum(a * a for a, _ in rows)
    ab = sum(a * b for a, b in rows)
    bb = sum(b * b for _, b in rows)
    a1, b1 = sum(a for a, _ in rows), sum(b for _, b in rows)
    apart = aa * bb - ab * ab
    alpha, each = (a1 * bb - b1 * ab) / apart, (b1 * aa - a1 * ab) / apart
    if alpha < 0:
        alpha, each = 0.0, b1 / bb
    if each <= 0:  # larger messages take no longer: the speed is at least that of the largest
        alpha, each = a1 / aa, seconds[-1] / sent[-1]
    return Link(alpha, 1 / each)
