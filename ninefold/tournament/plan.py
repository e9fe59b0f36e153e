"""Which turns there are, and in which order.

benchmarks/LOG.md has what these constants were measured by. How long turns took, and the number
that is made of them, is in `ninefold.tournament.taken`.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import TypeVar

from ninefold.types import MAX_TURNS

LEAD_SECONDS = 0.04  # of a turn that are not timed: its threads wake in another cell's caches
# The same for several processes: until the kernel schedules them as in a long run.
LEAD_SECONDS_OF_SEVERAL = 0.3
MIN_STEPS = 2  # timed steps of a turn, unless
SLOW_STEP = 1.0  # seconds: a step that takes as long is a turn by itself
MIN_TURNS = 2  # of a cell in a round: two tell how much its turns vary
# A long stretch of training alone: steps, and seconds that it has at least and that suffice.
STRETCH = 40, 1.0, 4.0

T = TypeVar("T")


@dataclass(frozen=True)
class Turn:
    """A turn: `lead` steps that are not timed, then `timed` that are.

    name: of what takes it. expected: its seconds, if known. counted: whether it counts.
    """

    name: str
    lead: int
    timed: int
    expected: float | None = None
    counted: bool = True

    @classmethod
    def of(cls, name: str, seconds: float, turn_seconds: float, several: bool) -> Turn:
        """The turn whose timed steps take `turn_seconds`, and at least as long as untimed ones.

        seconds: of a step. several: whether several processes take it together.
        """
        lead = LEAD_SECONDS_OF_SEVERAL if several else LEAD_SECONDS
        least = 1 if seconds >= SLOW_STEP else MIN_STEPS
        timed = max(least, round(max(turn_seconds, lead) / seconds))
        return cls(name, math.ceil(lead / seconds), timed)

    @property
    def steps(self) -> int:
        return self.lead + self.timed


def mirrored(items: Sequence[T], seed: str, number: int) -> list[T]:
    """Return `items` in the random order of pair number // 2, reversed for every odd number.

    A steady change of the machine then cancels out in each pair.
    """
    found = list(items)
    random.Random(f"{seed}/{number // 2}").shuffle(found)
    return found[::-1] if number % 2 else found


def spread(counts: Mapping[str, int], order: Callable[[int], Sequence[str]]) -> list[str]:
    """Return who takes a turn, one after another: each as often as counted, spread evenly.

    order: of the turns n of all that have as many; with equal counts these follow each other.
    """
    order = cache(order)
    places = [
        ((n + 0.5) / count, order(n).index(name), name)
        for name, count in counts.items()
        for n in range(count)
    ]
    return [name for *_, name in sorted(places)]


def turn_counts(seconds: Mapping[str, float], training: float) -> dict[str, int]:
    """Return how many turns each cell has if they train for so many seconds together.

    They are in proportion to 1 / sqrt(seconds of a turn): the mean of a process with one or two
    long turns would vary more than that of a process with many short ones.
    """
    scale = training / sum(map(math.sqrt, seconds.values()))
    counts = {name: round(scale / math.sqrt(s)) for name, s in seconds.items()}
    return {name: min(max(MIN_TURNS, count), MAX_TURNS) for name, count in counts.items()}


def stretch_steps(seconds: float) -> int:
    """Return how many steps of so many seconds a long stretch has."""
    steps, least, enough = STRETCH
    return max(min(steps, math.ceil(enough / seconds)), math.ceil(least / seconds))
