"""The table of a study in a terminal: a row for each cell, filled in as its runs end."""

from __future__ import annotations

import sys
import time
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING

from rich import box
from rich.console import Console, Group
from rich.live import Live
from rich.table import Table as Grid
from rich.text import Text

from ninefold.progress import duration
from ninefold.score import ACCURACY
from ninefold.study.screen import End, Screen

if TYPE_CHECKING:
    from ninefold.answer.fields import Field
    from ninefold.study.progress import CellProgress

STYLES = {"good": "green", "bad": "red", "even": "cyan"}  # of a verdict's word, by its state
WIDE = 100  # columns from which intervals have room


class Table(Screen):
    """A table that is drawn again in place, in calls of the study only.

    The cursor stays visible, on an empty line below the table: a progress bar that something
    draws there meanwhile disturbs nothing.
    """

    live = True

    def __init__(self, console: Console | None = None) -> None:
        self._console = console or Console(file=sys.stdout, highlight=False, emoji=False)
        self._live: Live | None = None
        self._cells: list[str] = []
        self._rows: dict[str, CellProgress] = {}
        self._ends: dict[str, End] = {}  # last run of each cell that has no row yet
        self._measured: Collection[str] | None = None
        self._running: Collection[str] = ()
        self._what, self._left = "", ""
        self._score = ACCURACY
        self._is_over = False

    def begin(self, cells: Sequence[str]) -> None:
        self._cells = list(cells)
        self._open()

    def running(self, what: str, cells: Collection[str] = (), left: float | None = None) -> None:
        self._what, self._running, self._left = what, cells, _until(left)
        self._draw()

    def ended(self, what: str, ends: Sequence[End] = (), left: float | None = None) -> None:
        for end in ends:
            self._ends[end.cell] = end
            self._score = end.scoring if end.status == "ok" else self._score
        self._running, self._left = (), _until(left)
        self._draw()

    def update(self, rows: Sequence[CellProgress], measured: Collection[str] | None = None) -> None:
        self._rows, self._measured = {row.cell: row for row in rows}, measured
        self._draw()

    def note(self, text: str) -> None:
        with self.with_display_hidden():
            print(text, flush=True)

    @contextmanager
    def with_display_hidden(self) -> Iterator[None]:
        """Take the table off the screen, and put it back below what was printed.

        Once the study has ended that is its report, which has the same figures.
        """
        drawn = self._live is not None and not self._is_over
        self._stop(keep=False)
        try:
            yield
        finally:
            if drawn:
                self._open()

    def close(self, interrupted: bool) -> None:
        """Keep the table in sight until the report is printed; for good where none follows."""
        self._running, self._what, self._left = (), "writing the report", ""
        self._is_over = True
        if interrupted:
            self._stop(keep=True)
        self._draw()

    def _open(self) -> None:
        self._live = Live(
            self._picture(),
            console=self._console,
            auto_refresh=False,
            redirect_stdout=False,
            redirect_stderr=False,
        )
        self._live.start(refresh=True)
        self._console.show_cursor(True)  # so that it is there, too, if this process is killed

    def _stop(self, keep: bool) -> None:
        if self._live is not None:
            self._live.transient = not keep
            self._live.update(Group(self._grid()) if keep else self._picture())
            self._live.stop()
            self._live = None

    def _draw(self) -> None:
        if self._live is not None:
            self._live.update(self._picture(), refresh=True)

    def _picture(self) -> Group:
        """The table, what runs now, and an empty line for the cursor."""
        now = "   ".join(filter(None, [self._what, self._left]))
        return Group(self._grid(), Text(f"  {now}", no_wrap=True, overflow="ellipsis"), Text(""))

    def _grid(self) -> Grid:
        rows = self._rows.values()
        wide = self._console.width >= WIDE
        scored = not rows or any(row.score.text for row in rows)
        score = f"{self._score.name} {self._score.mark}".rstrip()
        titles = ["configuration", "s/epoch", "speedup", *([score] if scored else []), "runs"]
        grid = Grid(box=box.SIMPLE_HEAD, padding=(0, 1 + wide, 0, 0), header_style="bold")
        for title in titles:  # the first is shortened where there is too little room
            grid.add_column(title, no_wrap=title != titles[0])
        for cell in self._cells:
            name, seconds, speed, of_score, runs = self._texts(cell, wide)
            grid.add_row(name, seconds, speed, *([of_score] if scored else []), runs)
        return grid

    def _texts(self, cell: str, wide: bool) -> tuple[Text, ...]:
        """What stands in the columns of a cell, with that of its score. wide: with intervals."""
        row, end = self._rows.get(cell), self._ends.get(cell)
        out = self._measured is not None and cell not in self._measured
        style = "dim" if out else ""
        mark = "▸ " if cell in self._running else "  "
        style_of_name = "bold" if cell in self._running else style
        name = Text(mark + cell, style_of_name, no_wrap=True, overflow="ellipsis")
        if row is None or not row.runs:
            status = row.status if row else None if end is None else end.status
            if status not in (None, "ok"):
                return name, Text(), Text(), Text(), Text(str(status), "red")
            if end is None:
                return name, Text(), Text(), Text(), Text()
            seconds = "" if end.seconds is None else f"{end.seconds:.3g}"
            return name, Text(seconds), Text(), Text(end.shown), Text("1")
        runs = Text(f"{row.runs}, eliminated" if out else str(row.runs), style)
        if row.status not in (None, "ok"):
            runs.append(f" {row.status}", "red")
        fields = (_text(field, wide, style) for field in (row.speedup, row.score))
        return name, Text(row.seconds, style), *fields, runs


def _text(field: Field, wide: bool, style: str) -> Text:
    found = Text(field.text, style)
    if wide and field.more:
        found.append(f" ({field.more})", style)
    if field.word is not None:
        said = f"{field.word.glyph} {field.word.text}".lstrip()
        found.append(f" {said}", STYLES.get(field.word.state, ""))
    return found


def _until(left: float | None) -> str:
    """The time left, and when it will be over: that stays true until the next call."""
    if not left:
        return ""
    end = time.strftime("%H:%M" if left > 120 else "%H:%M:%S", time.localtime(time.time() + left))
    return f"about {duration(left)} left, until {end}"
