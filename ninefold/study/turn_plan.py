"""How a timing round divides its time: steps of a turn, a long stretch, seconds of a round.

docs/method.md has what these constants were measured by.
"""

from __future__ import annotations

import math

from ninefold.result import TIMING_LOOKS

WARM = 0.04  # seconds of a turn that are not timed: its threads wake in another cell's caches
SETTLE = 0.3  # the same for several processes: until the kernel schedules them as in a long run
LEAST = 2  # timed steps of a turn
TRIAL = 3, 5  # untimed and timed steps of the first turn of a cell, which sets those of the others
STRETCH = 40, 1.0  # steps, and seconds, that a long stretch of training alone has at least
ROUNDS = 12  # that turns=auto divides the budget into, if starting processes leaves time for it
LOOKED = TIMING_LOOKS[0] + 1  # rounds that it makes room for: one more than the first look takes
LATE = 30.0  # seconds by which the second round may exceed the budget: one round decides nothing
SHARE = 0.25  # of the rounds so far that long stretches may take


def steps_of_turn(seconds: float, slice_: float, several: bool) -> tuple[int, int]:
    """Numbers of untimed and of timed steps of a turn; the timed ones take about as long or longer.

    seconds: of a step. slice_: seconds that are timed in a turn. several: whether several processes
    take it together.
    """
    warm = SETTLE if several else WARM
    return math.ceil(warm / seconds), max(LEAST, round(max(slice_, warm) / seconds))


def stretch_steps(seconds: float) -> int:
    """How many steps of so many seconds a long stretch has."""
    steps, least = STRETCH
    return max(steps, math.ceil(least / seconds))


def planned_seconds(budget: float, apart: float) -> float:
    """How many seconds a round takes of a budget, before what is left is divided into whole ones.

    ROUNDS rounds fill it. Where that leaves little time for turns, they take as long as the rest of
    a round, unless fewer than LOOKED rounds would fit.

    apart: seconds of the round that are not turns.
    """
    return max(min(max(budget / ROUNDS, 2 * apart), budget / LOOKED), 1e-9)


def round_seconds(budget: float, left: float, apart: float, rounds: int) -> float:
    """How many seconds a round takes: what is left, divided into at most so many whole rounds.

    apart: seconds of the round that are not turns.
    """
    return left / max(1, min(round(left / planned_seconds(budget, apart)), rounds))
