"""The screen of a study that another Python process has started, which shows it: a notebook's."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import asdict
from typing import TYPE_CHECKING

from ninefold.launch.events import tell
from ninefold.study.screen import End

if TYPE_CHECKING:
    from ninefold.report import CellProgress


class Events:
    """Tells what a study does, in the words of `Screen`."""

    live = True

    def begin(self, cells: Sequence[str]) -> None:
        tell("begin", cells=list(cells))

    def running(self, what: str, cells: Collection[str] = (), left: float | None = None) -> None:
        tell("running", what=what, left=left)

    def ended(self, what: str, ends: Sequence[End] = (), left: float | None = None) -> None:
        tell("ended", what=what, left=left)

    def update(self, rows: Sequence[CellProgress], measured: Collection[str] | None = None) -> None:
        tell("update", rows=[asdict(row) for row in rows])

    def note(self, text: str) -> None:
        tell("note", text=text)

    def with_display_hidden(self) -> AbstractContextManager[None]:
        return nullcontext()

    def close(self) -> None:
        tell("close")
