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

from ninefold.score import ACCURACY
from ninefold.study.screen import End, Screen, duration

if TYPE_CHECKING:
    from ninefold.report import CellProgress

STYLES = {"faster": "green", "slower": "red", "safe": "green", "worse": "red", "tie": "cyan"}
GLYPHS = {"faster": "▲", "slower": "▼", "safe": "✓", "worse": "▼", "tie": "="}
WIDE = 100  # columns from which the interval of the ratio has room


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
        """Take the table off the screen, and put it back below what was printed."""
        drawn = self._live is not None
        self._stop(keep=False)
        try:
            yield
        finally:
            if drawn:
                self._open()

    def close(self) -> None:
        self._running = ()
        self._stop(keep=True)

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
        wide, rows = self._console.width >= WIDE, self._rows.values()
        scored = not rows or any(row.score for row in rows)
        columns = {
            "cell": (True, "left"),
            "s/epoch": (True, "right"),
            "to none-fp32" if wide else "ratio": (True, "right"),
            "interval": (wide, "left"),
            "time": (True, "left"),
            f"{self._score.name} {self._score.mark}".rstrip(): (scored, "right"),
            "score": (scored, "left"),
            "runs" if wide else "n": (True, "right"),
        }
        grid = Grid(box=box.SIMPLE_HEAD, padding=(0, 1 + wide, 0, 0), header_style="bold")
        for name, (shown, side) in columns.items():
            if shown:  # the first is shortened where there is too little room
                grid.add_column(name, justify=side, no_wrap=name != "cell")  # type: ignore[arg-type]
        for cell in self._cells:
            texts = zip(self._texts(cell), columns.values(), strict=True)
            grid.add_row(*(text for text, (shown, _) in texts if shown))
        return grid

    def _texts(self, cell: str) -> list[Text]:
        """What stands in the columns of a cell, the interval included."""
        row, end = self._rows.get(cell), self._ends.get(cell)
        out = self._measured is not None and cell not in self._measured
        style = "dim" if out else ""
        mark = "▸ " if cell in self._running else "  "
        style_of_name = "bold" if cell in self._running else style
        name = Text(mark + cell, style_of_name, no_wrap=True, overflow="ellipsis")
        if row is None or not row.runs:
            status = row.status if row else None if end is None else end.status
            if status not in (None, "ok"):
                return [name, Text(str(status), "red"), *(Text(""),) * 6]
            if end is None:
                return [name, *(Text(""),) * 7]
            seconds = "" if end.seconds is None else f"{end.seconds:.3g}"
            texts = [seconds, "", "", "", end.shown, "", "1"]
            return [name, *(Text(text) for text in texts)]
        return [
            name,
            Text(row.seconds, style),
            Text(row.ratio, style),
            Text(row.interval, style),
            _verdict(row.time),
            Text(row.score, style),
            _verdict(row.safety) if row.status in (None, "ok") else Text(row.status, "red"),
            Text(f"{row.runs} out" if out else str(row.runs), style),
        ]


def _verdict(word: str) -> Text:
    return Text(f"{GLYPHS.get(word, '·')} {word}" if word else "", STYLES.get(word, ""))


def _until(left: float | None) -> str:
    """The time left, and when it will be over: that stays true until the next call."""
    if not left:
        return ""
    end = time.strftime("%H:%M" if left > 120 else "%H:%M:%S", time.localtime(time.time() + left))
    return f"about {duration(left)} left, until {end}"
