"""Which turns there are, and in which order.

Whatever may matter is the same for all contestants or drawn anew in each round: all take the same
steps, so those that read the same data in the same order are timed on the same batches; and where a
turn begins in what comes every few steps is drawn, as is who goes first. benchmarks/log/turns.md
has what these constants were measured by.
"""

from __future__ import annotations

import math
import random
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from statistics import median_low
from typing import NamedTuple

LEAD_SECONDS = 0.04  # of a turn that are not timed: its threads wake in another cell's caches
# The same for several processes: until the kernel schedules them as in a long run.
LEAD_SECONDS_OF_SEVERAL = 0.3
MIN_STEPS = 2  # timed steps of a turn, unless
SLOW_STEP = 1.0  # seconds: a step that takes as long is a turn by itself
CYCLE = 4  # timed steps of a turn where time allows: what comes every few steps is then in most
TURN_SHARE = 1 / 12  # of the time that the timed steps of one turn of each may take
REACH = 8  # times the steps of a typical process: whoever has taken more is not caught up with
MIN_TURNS = 2  # of each in a round, the second in the reversed order
MOST_OFFSET, OFFSET_SHARE = 15, 1 / 48  # steps of a drawn offset, and the time that they may take
# A long stretch of training alone: steps, and seconds that it has at least and that suffice.
STRETCH = 40, 1.0, 4.0


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

    @property
    def steps(self) -> int:
        return self.lead + self.timed


class Asked(NamedTuple):
    """What a turn of one contestant asks for.

    step, seconds: of a step, and of the timed steps. several: whether several processes take it
    together. workers: of its loader.
    """

    step: float
    seconds: float
    several: bool
    workers: int

    @property
    def lead(self) -> float:
        return LEAD_SECONDS_OF_SEVERAL if self.several else LEAD_SECONDS

    @property
    def timed(self) -> int:
        return round(max(self.seconds, self.lead) / self.step)


def turn_steps(asked: Sequence[Asked], seconds: float) -> tuple[int, int]:
    """Return the untimed and the timed steps of a turn, which are the same for all.

    They are the most that any asks for, unless speeds are so far apart that the slowest would take
    the time with them. A turn has a step of each worker of a loader, as every such step may wait.
    seconds: of the comparison.
    """
    steps = [each.step for each in asked]
    fit = int(TURN_SHARE * seconds / sum(steps))
    least = 1 if min(steps) >= SLOW_STEP else MIN_STEPS
    lead = max(math.ceil(each.lead / each.step) for each in asked)
    timed = max(CYCLE, *(max(each.workers, each.timed) for each in asked))
    return max(1, min(lead, fit // 2)), max(least, min(timed, fit))


def common_start(taken: Collection[int], further: int) -> int:
    """Return after how many steps of a process all begin their turns.

    It is `further` steps after the one that has taken most, but for those that are so fast that the
    others would not catch up with them in time. taken: steps of each process.
    """
    reach = REACH * median_low(taken)
    return max(steps for steps in taken if steps <= reach) + further


def offset(seed: str, steps: Iterable[float], seconds: float) -> int:
    """Draw how many further steps all take before the first turn of a round.

    steps: seconds of a step of each contestant. seconds: of the comparison.
    """
    most = min(MOST_OFFSET, int(OFFSET_SHARE * seconds / sum(steps)))
    return random.Random(seed).randint(0, most)


def drawn(names: Iterable[str], seed: str, number: int) -> list[str]:
    """Return names in the random order of pair number // 2, reversed for every odd number.

    What changes steadily then cancels out in each pair. A name has its place whoever else is there.
    """
    pair = f"{seed}/{number // 2}"
    place = {name: random.Random(f"{pair}/{name}").random() for name in names}
    return sorted(place, key=lambda name: place[name], reverse=number % 2 == 1)


def stretch_steps(seconds: float) -> int:
    """Return how many steps of so many seconds a long stretch has."""
    steps, least, enough = STRETCH
    return max(min(steps, math.ceil(enough / seconds)), math.ceil(least / seconds))
