"""Whether a command's steps catch up after a pause, so that turns do not show what a step takes.

A step that waits for a clock, or for data that are pushed in from outside, does not wait after a
pause: the clock and the data went on. Each turn follows a pause.

Where other programs take the CPU, or threads wait for each other, later steps take longer, too: the
scheduler favors who has slept, or has two threads take turns on one core. They wait for no clock
then. So where threads compute or wait for a CPU longer, by half of what later steps take longer,
nothing is seen.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean

from ninefold.bench.contestant import Contestant
from ninefold.tournament.neighbors import seconds_without_cpu
from ninefold.tournament.plan import Turn, stretch_steps
from ninefold.waits import poll_until

AHEAD = 1.1  # times that later steps take of the first ones, from which on these catch up
BUSIER = 0.5  # share of what later steps take longer that threads have to do more in them
ENOUGH = 4  # looks that all have to show it: other programs slow one down at the wrong time
PAUSE = 2.0  # turns that the pause lasts: steps as far behind do not wait at all in a turn
CATCHING_UP = 5.0  # pauses that it takes to make up for one if five sixths of a step are work
LONGEST_CATCHING_UP = 4.0  # seconds
WINDOWS = 4  # later stretches of as many steps as a turn times, at least
# Of a look: seconds, and the share of the time that those of all commands may take where they take
# longer. Of steps that make it longer nothing is known.
SHORT, SHARE = 4.0, 0.2


@dataclass(frozen=True)
class Look:
    """Steps after a pause. pause: its seconds.

    first, later, alone: seconds of a step. first: in the steps that a turn after the pause times.
    Later ones come in stretches of as many steps; later: in the quickest stretch; alone: in all of
    them. busier: by how much longer threads, all together, run or wait for a CPU in later steps.
    """

    pause: float
    first: float
    later: float
    alone: float
    busier: float = 0.0

    @property
    def ahead(self) -> float:
        """How many times longer later steps take; 1 where threads do more in them."""
        longer = self.alone - self.first
        return 1.0 if self.busier > BUSIER * longer else self.later / self.first


def is_short(turn: Turn, each: float, behind: float, budget: float) -> bool:
    """Whether there is time for a look. each: seconds of a step. budget: for each command."""
    seconds = PAUSE * turn.steps * each + each * sum(_steps(turn, each, behind))
    return seconds < max(SHORT, SHARE * budget)


def look(contestant: Contestant, turn: Turn, each: float) -> Look:
    """Pause a command, and let it train for a while. each: seconds of a step. Raises Ended."""
    pause = PAUSE * turn.steps * each
    poll_until(lambda: False, pause)
    steps = _steps(turn, each, contestant.paused)
    after_it, *busy = _train(contestant, steps[0], each)
    then, *busy_then = _train(contestant, sum(steps[1:]), each)
    busier = sum(max(long - short, 0.0) for short, long in zip(busy, busy_then, strict=True))
    first, last = fmean(after_it[turn.lead :]), then[-steps[-1] :]
    later, alone = quickest(last, turn.timed), fmean(last)
    return Look(pause, first, later, alone, busier)


def _train(contestant: Contestant, steps: int, each: float) -> tuple[list[float], float, float]:
    """Seconds of each step; of one, CPU seconds, and those in which threads had no CPU."""
    before = seconds_without_cpu(contestant.processes)
    taken = contestant.turn(0, steps, steps * each)
    after = seconds_without_cpu(contestant.processes)
    without = sum(of - before.get(thread, 0.0) for thread, of in after.items())
    return taken.each, taken.cpu or 0.0, without / steps


def quickest(seconds: Sequence[float], steps: int) -> float:
    """The mean of the quickest of the stretches of so many steps, one after another."""
    starts = range(0, len(seconds) - steps + 1, steps)
    return min(fmean(seconds[start : start + steps]) for start in starts)


def _steps(turn: Turn, each: float, behind: float) -> tuple[int, int, int]:
    """Steps of the turn, those in which a command catches up, and those that follow.

    behind: seconds that it was paused before.
    """
    seconds = min(max(CATCHING_UP * PAUSE * turn.steps * each, behind), LONGEST_CATCHING_UP)
    known = stretch_steps(each)
    last = max(known // 2, WINDOWS * turn.timed)
    return turn.steps, math.ceil(seconds / each) + max(known - last, 0), last
