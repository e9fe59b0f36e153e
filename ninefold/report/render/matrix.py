"""The matrix of a study: a row for each strategy, a column for each precision."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator
from dataclasses import dataclass

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
    def lines(self) -> tuple[str, str]:
        """Its figures and its note on a console; without figures the note comes first."""
        figures = " ".join(self.figures).replace(" %", "%")
        return (figures, self.note) if figures else (self.note, "")


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
    """How many of the results are shown to keep the score; nothing where none was compared."""
    own = [cell.cell for cell in group.shown]
    safe = [test.verdict == "safe" for test in group.comparison.safety if test.cell in own]
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
            yield copy, Entry(note=_as(base), style=COPY)


def _note(cell: CellReport, group: Group) -> str:
    base = cell.repeats or group.untimed.get(cell.cell)
    return _as(base) if base else reason(cell) or "use this" * (cell.against == "named")


def _as(base: Cell) -> str:
    return f"as {base.strategy}, {base.amp}"


def markdown_matrix(found: Matrix) -> str:
    """Return the matrix as Markdown."""

    def text(entry: Entry) -> str:
        figures = plain(" · ".join(entry.figures))
        shown = f"**{figures}**" if entry.style == "named" else figures
        return "; ".join(filter(None, [shown, plain(entry.note)]))

    rows = [[plain(name), *map(text, row)] for name, row in found.rows]
    return grid(["strategy", *map(plain, found.columns)], rows)


def matrix_lines(found: Matrix, width: int) -> list[str]:
    """Return the matrix as lines of text, of so many characters at most: columns that do not fit
    follow below the others."""
    rows = [["", *found.columns]]
    for name, entries in found.rows:
        first, second = zip(*(entry.lines for entry in entries), strict=True)
        rows += [[name, *first], ["", *second]]
    head, *widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    most = max(1, (width - head) // (GAP + max(widths)))
    said = textwrap.wrap(found.about, width)
    for start in range(1, len(found.columns) + 1, most):
        block = [[row[0], *row[start : start + most]] for row in rows]
        said += aligned([row for row in block if any(row)])
    return said
