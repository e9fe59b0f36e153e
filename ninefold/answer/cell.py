"""Cell: what is compared, one strategy with one precision."""

from __future__ import annotations

import math
from typing import NamedTuple

from ninefold.config.options import places
from ninefold.result import strategy_name


class Cell(NamedTuple):
    """A strategy with a precision; processes: how many, where a study swept them, else None.

    Its text, such as `ddp-scaler` or `ddp x4-scaler`, is for people and files: nothing reads it.
    """

    parallel: str
    amp: str
    processes: int | None = None

    @property
    def strategy(self) -> str:
        """The strategy with its processes: `ddp x4`."""
        return strategy_name(self.parallel, self.processes)

    def __str__(self) -> str:
        return f"{self.strategy}-{self.amp}"


def plainness(cell: Cell) -> tuple[object, ...]:
    """A key that sorts cells, the simplest first."""
    strategy = position("parallel", cell.parallel)
    return *strategy, cell.processes or 0, *position("amp", cell.amp)


PLAIN = Cell("none", "fp32")  # the cell that the others are compared with
BASELINE = f"{PLAIN.parallel}, {PLAIN.amp}"  # what a reader calls it


def position(group: str, option: str) -> tuple[bool, float, str]:
    """A key that sorts options: the baseline's, those with a place, the others alphabetically."""
    return option != getattr(PLAIN, group), places(group).get(option, math.inf), option
