"""The matrix of a study: a row for each strategy, a column for each precision."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import zip_longest

from ninefold.answer.cell import BASELINE, Cell, plainness, position
from ninefold.answer.measures import SECONDS
from ninefold.numbers import number, with_unit, within_margin
from ninefold.progress import aligned
from ninefold.report.render.results import figures_of, reason, scores_of, style
from ninefold.report.render.tables import NONE
from ninefold.report.tree import CellReport, Group
from ninefold.tables import grid, plain

COPY = "copy"  # the style of a configuration that does another one's work
GAP = 2  # spaces between columns on a console
FIGURES = 21  # characters that the figures of a configuration take there: `0.0823 s 1.00× 98.89%`


@dataclass(frozen=True)
class Entry:
    """What is shown of one configuration.

    seconds, speed, score: as text; empty where they are not known. interval: of the speed.
    note: why its figures count for nothing, or whose work it does.
    style: `named` by the answer, `out` of the running, `copy` of another one, or empty.
    """

    seconds: str = ""
    speed: str = ""
    interval: str = ""
    score: str = ""
    note: str = ""
    style: str = ""

    @property
    def figures(self) -> list[str]:
        """The figures that are known."""
        return [text for text in (self.seconds, self.speed, self.score) if text]

    @property
    def copies(self) -> bool:
        """Whether it does another one's work: that stands first, its figures are small."""
        return self.style == COPY


@dataclass(frozen=True)
class Matrix:
    """about: what its figures are. rows: a strategy with an entry for each precision."""

    about: str
    columns: list[str]
    rows: list[tuple[str, list[Entry]]]


def matrix(group: Group) -> Matrix | None:
    """Return the matrix of a group; None where only one strategy or precision was swept."""
    cells = sorted([*(each.cell for each in group.cells), *group.untimed], key=plainness)
    strategies = list(dict.fromkeys(cell.strategy for cell in cells))
    amps = sorted({cell.amp for cell in cells}, key=lambda amp: position("amp", amp))
    if min(len(strategies), len(amps)) < 2:
        return None
    entries = {(cell.strategy, cell.amp): entry for cell, entry in _entries(group)}
    return Matrix(
        _about(group),
        [_column(amp, group) for amp in amps],
        [
            (strategy, [entries.get((strategy, amp), Entry(note="not run")) for amp in amps])
            for strategy in strategies
        ],
    )


def _about(group: Group) -> str:
    said = ["seconds an epoch"]
    if any(cell.speedup for cell in group.cells):
        said.append(f"speedup over {BASELINE} (above 1 is faster)")
    if group.scored:
        said.append(group.score + _kept(group))
    return f"In each cell: {', '.join(said)}."


def _kept(group: Group) -> str:
    """How many configurations are shown to keep the score; nothing where none was compared."""
    safe = [test.verdict == "safe" for test in group.comparison.safety]
    if not safe:
        return ""
    margin = within_margin(group.settings.margin, group.unit, group.better, BASELINE)
    count = "all" if all(safe) else f"{sum(safe)} of {len(safe)}"
    return f" (kept by {count}: shown to be {margin})"


def _column(amp: str, group: Group) -> str:
    """A precision with its number format, where all configurations have the same."""
    names = {cell.label.split(", ", 1)[-1] for cell in group.cells if cell.cell.amp == amp}
    return names.pop() if len(names) == 1 else amp


def _entries(group: Group) -> Iterator[tuple[Cell, Entry]]:
    seconds, score = figures_of(group, SECONDS.key), scores_of(group)
    for cell in group.cells:
        took, speed, scored = seconds(cell).text, cell.speedup, score(cell).text
        yield (
            cell.cell,
            Entry(
                "" if took == NONE.text else f"{took} s",
                "" if speed is None else f"{number(speed.value, 2)}×",
                "" if speed is None else speed.interval,
                "" if scored == NONE.text else with_unit(scored, group.unit),
                _note(cell, group),
                COPY if cell.repeats else style(cell),
            ),
        )
    for copy, base in group.untimed.items():
        if copy not in [each.cell for each in group.cells]:
            yield copy, Entry(note=_as(copy, base), style=COPY)


def _note(cell: CellReport, group: Group) -> str:
    base = cell.repeats or group.untimed.get(cell.cell)
    if base is not None:
        return _as(cell.cell, base)
    return reason(cell) or "use this" * (cell.against == "named")


def _as(cell: Cell, base: Cell) -> str:
    """Whose work a configuration does, and why."""
    why = ["one device"] * (cell.strategy != base.strategy)
    why += ["scaler not needed"] * (cell.amp != base.amp)
    return f"as {base.strategy}, {base.amp}: {', '.join(why)}"


def markdown_matrix(found: Matrix) -> str:
    """Return the matrix as Markdown."""

    def text(entry: Entry) -> str:
        figures = " · ".join(entry.figures)
        if entry.copies:
            said = [f"{entry.note}{f' ({figures})' if figures else ''}"]
        else:
            said = [f"**{figures}**" if entry.style == "named" else figures, entry.note]
        return "; ".join(filter(None, said))

    rows = [[plain(name), *(plain(text(entry)) for entry in row)] for name, row in found.rows]
    return grid(["strategy", *map(plain, found.columns)], rows)


def matrix_lines(found: Matrix, width: int) -> list[str]:
    """Return the matrix as lines of text, of so many characters at most: columns that do not fit
    follow below the others."""
    head = max(len(name) for name, _ in found.rows)
    most = max(1, (width - head) // (GAP + FIGURES))
    said = textwrap.wrap(found.about, width)
    for start in range(0, len(found.columns), most):
        said += _block(found, slice(start, start + most), head, width)
    return said


def _block(found: Matrix, part: slice, head: int, width: int) -> list[str]:
    """The lines of some columns."""
    columns = found.columns[part]
    room = (width - head) // len(columns) - GAP
    rows = [("", [textwrap.wrap(title, room) for title in columns])]
    rows += [(name, [_text(entry, room) for entry in row[part]]) for name, row in found.rows]
    lines = [
        ["" if count else name, *texts]
        for name, cells in rows
        for count, texts in enumerate(zip_longest(*cells, fillvalue=""))
    ]
    return aligned(lines)


def _text(entry: Entry, room: int) -> list[str]:
    """The lines of one entry; a figure is not broken."""
    figures = " ".join(text.replace(" ", "\0") for text in entry.figures)
    note = entry.note if len(entry.note) <= room else entry.note.replace(": ", ":\n")
    said = [note, f"({figures})" * bool(figures)] if entry.copies else [figures, note]
    lines = [line for text in said for line in text.splitlines()]
    short = [line.replace("\0%", "%").replace(" %", "%") for line in lines]
    return [part.replace("\0", " ") for line in short for part in textwrap.wrap(line, room)]
