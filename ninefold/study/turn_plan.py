"""Which turns there are, and in which order: of cells of a study, and of steps of `time_steps`.

benchmarks/LOG.md has what these constants were measured by. How long turns took, and the number
that is made of them, is in `ninefold.stats.counted_turns`.
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
FIRST_TURN = 3, 5  # untimed and timed steps of a cell's first turn, which sets those of the others
FIRST_TURN_STEP = 0.1  # seconds: of a longer step a warm-up step tells enough
# A long stretch of training alone: steps, and seconds that it has at least and that suffice.
STRETCH = 40, 1.0, 4.0
STRETCH_SHARE = 0.25  # of the rounds so far that long stretches may take
ROUNDS = 6  # that turns=auto divides the budget into, if starting processes leaves time for it
MIN_ROUNDS = 2  # that it makes room for
LATE = 30.0  # seconds by which the second round may exceed the budget: one round decides little

T = TypeVar("T")


@dataclass(frozen=True)
class Turn:
    """A turn: `lead` steps that are not timed, then `timed` that are. name: of what takes it."""

    name: str
    lead: int
    timed: int

    @classmethod
    def of(cls, name: str, seconds: float, slice_: float, several: bool) -> Turn:
        """The turn whose timed steps take `slice_` seconds, and at least as long as untimed ones.

        seconds: of a step. several: whether several processes take it together.
        """
        lead = LEAD_SECONDS_OF_SEVERAL if several else LEAD_SECONDS
        least = 1 if seconds >= SLOW_STEP else MIN_STEPS
        timed = max(least, round(max(slice_, lead) / seconds))
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


def planned_seconds(budget: float, overhead: float, share: float = 1.0) -> float:
    """Return the seconds of a round, before what is left is divided into whole rounds.

    ROUNDS rounds fill the budget. Where that leaves little time for turns, they take as long as the
    rest of a round, unless fewer than MIN_ROUNDS rounds would fit. A round of fewer cells is as
    much shorter: a cell that is out gives the others rounds, which decide more than longer ones.

    overhead: seconds of the round that are not turns. share: of the cells that are left.
    """
    return max(min(max(share * budget / ROUNDS, 2 * overhead), budget / MIN_ROUNDS), 1e-9)


def round_seconds(
    budget: float, left: float, overhead: float, rounds: int, share: float = 1.0
) -> float:
    """Return the seconds of a round: what is left, divided into at most so many whole rounds.

    overhead, share: as of `planned_seconds`.
    """
    return left / max(1, min(round(left / planned_seconds(budget, overhead, share)), rounds))
