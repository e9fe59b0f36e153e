"""Whether a command's steps catch up after a pause, so that turns do not show what a step takes.

A step that waits for a clock, or for data that are pushed in from outside, does not wait after a
pause: the clock and the data went on. Each turn follows a pause.

Steps whose threads wait for a CPU, or for each other, are quicker after a pause as well: later ones
took up to 2.9 times as long. So only those are seen to catch up that wait most of their time.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from ninefold.bench.held import HeldCommand
from ninefold.tournament.plan import Turn
from ninefold.waits import poll_until

AHEAD = 4.0  # times that later steps take of the first ones, from which on these catch up
ENOUGH = 4  # looks that all have to show it: other programs slow one down at the wrong time
PAUSE = 2.0  # turns that the pause lasts: steps as far behind do not wait at all in a turn
CATCHING_UP = 2.0  # times as far as it is behind, to make up for it if half of a step is work
LONGEST_CATCHING_UP = 4.0  # seconds
# Of a look: seconds, and the share of the time that those of all commands may take where they take
# longer. Of steps that make it longer nothing is known.
SHORT, SHARE = 4.0, 0.2


@dataclass(frozen=True)
class Pause:
    """Steps after a pause. pause: its seconds.

    first, later: seconds of a step. first: in the steps that a turn after the pause times. later:
    in as many, once it has had the time to catch up.
    """

    pause: float
    first: float
    later: float

    @property
    def ahead(self) -> float:
        """How many times longer later steps take."""
        return self.later / self.first


def is_short(turn: Turn, step: float, behind: float, budget: float) -> bool:
    """Whether there is time for a look. step: its seconds. budget: for each command."""
    steps = (PAUSE + 1) * turn.steps + _catching_up(turn, step, behind) + turn.timed
    return step * steps < max(SHORT, SHARE * budget)


def look(held: HeldCommand, turn: Turn, step: float) -> Pause:
    """Pause a command, and let it train for a while. step: its seconds. Raises Ended."""
    pause = PAUSE * turn.steps * step
    poll_until(lambda: False, pause)
    between = _catching_up(turn, step, held.paused)
    first = held.train(turn.lead, turn.timed, turn.steps * step)
    later = held.train(between, turn.timed, (between + turn.timed) * step)
    return Pause(pause, first.seconds, later.seconds)


def _catching_up(turn: Turn, step: float, behind: float) -> int:
    """Steps in which a command catches up. behind: seconds that it was paused before."""
    seconds = CATCHING_UP * (behind + PAUSE * turn.steps * step)
    return math.ceil(min(seconds, LONGEST_CATCHING_UP) / step)
