"""Cell: what is compared, one strategy with one precision."""

from __future__ import annotations

from typing import NamedTuple

from ninefold.result import strategy_name

# In the order in which they are shown, the simplest first; others follow by their names.
PARALLEL = ("none", "dp", "ddp")
AMP = ("fp32", "default", "autocast", "scaler", "tf32", "bf16", "fp16", "bf16_weights")


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
    return *position(cell.parallel, PARALLEL), cell.processes or 0, *position(cell.amp, AMP)


PLAIN = Cell("none", "fp32")  # the cell that the others are compared with
BASELINE = f"{PLAIN.parallel}, {PLAIN.amp}"  # what a reader calls it


def position(name: str, known: tuple[str, ...]) -> tuple[int, str]:
    """Return a key that sorts known names in their order, then the others alphabetically."""
    return known.index(name) if name in known else len(known), name
