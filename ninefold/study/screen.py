"""What a person sees while a study runs: a table in a terminal, elsewhere a line for each run.

A study calls the screen between its runs and between the turns of timing rounds, never during one:
a screen has no thread, and prints or draws in the call only.
"""

from __future__ import annotations

import time
from collections.abc import Collection, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ninefold.launch.events import tell
from ninefold.progress import duration
from ninefold.result import Result
from ninefold.score import ACCURACY, SHARE, Score

if TYPE_CHECKING:
    from ninefold.study.progress import CellProgress

SILENCE = 60.0  # seconds without a line, after which there is one of what begins


@dataclass(frozen=True)
class End:
    """How the run of a cell ended. seconds: of an epoch; score: its value; None if unknown."""

    cell: str
    status: str
    seconds: float | None = None
    score: float | None = None
    scoring: Score = ACCURACY

    @classmethod
    def of(cls, cell: str, result: Result | None) -> End:
        """result: of the run, None if it left none."""
        if result is None or result.status != "ok":
            return cls(cell, "failed" if result is None else result.status)
        trained, score = result.train_seconds, result.score
        seconds = trained / result.epochs if trained is not None and result.epochs else None
        return cls(cell, result.status, seconds, score, result.scoring)

    @property
    def shown(self) -> str:
        """Its score: a share in percent, others as they are; empty if unknown."""
        if self.score is None:
            return ""
        value = self.scoring.scale * self.score
        return f"{value:.2f}" if self.scoring.unit == SHARE else f"{value:.6g}"

    def __str__(self) -> str:
        if self.status != "ok":
            return self.status
        score = f"{self.scoring.name} {self.shown} {self.scoring.mark}".rstrip()
        words = [] if self.score is None else [score]
        words += [] if self.seconds is None else [f"{self.seconds:.3g} s/epoch"]
        return "  ".join(words)


class Screen:
    """What a study tells about itself, in this order: begin, anything else, close.

    This one shows nothing. live: whether `update` does; its rows take a moment to compute.
    """

    live = False

    def begin(self, cells: Sequence[str]) -> None:
        """The study begins, or is resumed, with these cells."""

    def running(self, what: str, cells: Collection[str] = (), left: float | None = None) -> None:
        """Something begins: `run 5 of 27  round 2  ddp-fp32 seed 1`, a turn.

        cells: that run now. left: seconds that the study is expected to take from here.
        """

    def ended(self, what: str, ends: Sequence[End] = (), left: float | None = None) -> None:
        """What `running` announced has ended; ends: the runs of it. left: as in `running`."""

    def update(self, rows: Sequence[CellProgress], measured: Collection[str] | None = None) -> None:
        """All figures so far. measured: the cells that runs are still made of; None: all."""

    def note(self, text: str) -> None:
        """Something to be kept in sight: the budget, a round that settles the answer."""

    def with_display_hidden(self) -> AbstractContextManager[None]:
        """While the block runs, anything may be printed, on standard output or error."""
        return nullcontext()

    def close(self, interrupted: bool) -> None:
        """The study has ended, and its report follows; or it was interrupted."""


class Lines(Screen):
    """For a pipe or a file: a line for each run that has ended, and one after a minute without."""

    def __init__(self) -> None:
        self._told = time.monotonic()

    def begin(self, cells: Sequence[str]) -> None:
        """The first run or timing round may take minutes: say at once that there is something."""
        shown = ", ".join(cells[:9])
        more = f" and {len(cells) - 9} more" if len(cells) > 9 else ""
        self.note(f"{len(cells)} configuration{'s' * (len(cells) > 1)}: {shown}{more}")

    def running(self, what: str, cells: Collection[str] = (), left: float | None = None) -> None:
        if time.monotonic() - self._told >= SILENCE:
            self._announce(what, left)

    def ended(self, what: str, ends: Sequence[End] = (), left: float | None = None) -> None:
        words = [what, *([str(ends[0])] if len(ends) == 1 else [])]
        self.note("  ".join(filter(None, [*words, time_left(left, "|  ")])))

    def note(self, text: str) -> None:
        print(text, flush=True)
        self._told = time.monotonic()

    def _announce(self, what: str, left: float | None) -> None:
        self.note("  ".join(filter(None, [what, time_left(left, "|  ")])))


class Announcements(Lines):
    """For runs that print their progress themselves: a line before each."""

    def running(self, what: str, cells: Collection[str] = (), left: float | None = None) -> None:
        self._announce(what, left)

    def ended(self, what: str, ends: Sequence[End] = (), left: float | None = None) -> None:
        return


class Events(Screen):
    """Tells another Python process what a study does: that of a notebook, which shows it."""

    live = True

    def begin(self, cells: Sequence[str]) -> None:
        tell("begin", cells=list(cells))

    def running(self, what: str, cells: Collection[str] = (), left: float | None = None) -> None:
        tell("running", what=what, left=left)

    def ended(self, what: str, ends: Sequence[End] = (), left: float | None = None) -> None:
        tell("ended", what=what, left=left)

    def update(self, rows: Sequence[CellProgress], measured: Collection[str] | None = None) -> None:
        tell("update", rows=[row.texts for row in rows])

    def note(self, text: str) -> None:
        tell("note", text=text)

    def close(self, interrupted: bool) -> None:
        tell("close")


def time_left(seconds: float | None, before: str = "") -> str:
    """`about 40 s left`, empty if it is not known or nothing is left."""
    return f"{before}about {duration(seconds)} left" if seconds else ""
