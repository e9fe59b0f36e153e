"""Times the link between a run's processes: the latency and the speed of its all-reduces."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import torch

from ninefold.engine.parallel import Parallel, RankContext, gather

SIZES = 1 << 12, 1 << 20, 1 << 22  # bytes: the first shows the latency, the others the speed
MIN_REDUCES = 3  # all-reduces of each size that are timed


@dataclass(frozen=True)
class Link:
    """Time of an all-reduce of s bytes over p processes: alpha + 2 (p - 1) / p s / speed.

    alpha_seconds: of a message of no size.
    bytes_per_second: of what each process sends; in a ring that is 2 (p - 1) / p s.
    """

    alpha_seconds: float
    bytes_per_second: float


def time_link(seconds: float, parallel: Parallel, context: RankContext) -> Link | None:
    """Time all-reduces for about so many seconds; None if there is one process, or 0 seconds.

    Every process must call it. Each size has the same time, and at least MIN_REDUCES all-reduces.

    Many links pass a short burst faster than their sustained rate (a token bucket). A training
    sends in every step, so the sustained rate is measured: all-reduces of one size follow each
    other at once, the first is not timed, and the largest size comes first.
    """
    if not seconds or context.world_size == 1:
        return None
    parallel.all_reduce_sum(torch.zeros(SIZES[-1] // 4, device=context.device))  # opens connections
    share = seconds / len(SIZES)
    taken = [_in_a_row(size, share, parallel, context) for size in reversed(SIZES)]
    return fitted(taken[::-1], context.world_size)


def _in_a_row(size: int, seconds: float, parallel: Parallel, context: RankContext) -> float:
    """Seconds of an all-reduce of `size` bytes: the mean of those that fit into `seconds`.

    The mean, because the time of a step, which it is to explain, is one.
    """
    buffer = torch.zeros(size // 4, device=context.device)

    def timed(count: int) -> float:
        context.synchronize()
        began = time.perf_counter()
        for _ in range(count):
            parallel.all_reduce_sum(buffer)
            context.synchronize()
        return (time.perf_counter() - began) / count

    slowest = gather(torch.tensor(timed(1), device=context.device), parallel, context).max()
    return timed(
        max(MIN_REDUCES, round(seconds / float(slowest)))
    )  # the same number on every process


def fitted(seconds: Sequence[float], processes: int) -> Link:
    """Return the link on which an all-reduce of SIZES[i] bytes takes seconds[i].

    The speed is the highest ratio of additional bytes sent to additional time between two sizes
    that follow each other: what both take alike does not count, and which size is fastest depends
    on how a backend cuts messages into pieces. The latency is the time of the smallest without
    that of sending its bytes at this speed. processes: how many take part.
    """
    sent = [2 * (processes - 1) / processes * size for size in SIZES]
    steps = zip(pairwise(seconds), pairwise(sent), strict=True)
    each = [(late - soon) / (more - less) for (soon, late), (less, more) in steps]
    # Where larger messages take no longer, the speed is at least that of the largest.
    best = min((one for one in each if one > 0), default=seconds[-1] / sent[-1])
    return Link(max(0.0, seconds[0] - sent[0] * best), 1 / best)
