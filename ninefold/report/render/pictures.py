"""Draws where the time of a step goes, and the learning curves."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from ninefold.errors import one_line
from ninefold.report.answer.tree import CellReport, Curve, Group
from ninefold.report.data.cell import PLAIN, Cell
from ninefold.report.numbers import in_words, score_text, with_unit
from ninefold.report.render.plots import (
    COLORS,
    HATCHES,
    Canvas,
    Picture,
    beside,
    fitting,
    longest,
    rows,
)
from ninefold.report.render.results import ordered
from ninefold.score import PHASES

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_MUTED, _ACCENT = COLORS["muted"], COLORS["accent"]
_POINTS = 150  # of one curve at most: more cannot be seen in a panel
_LETTERS = 26  # of a configuration's name
Line = list[tuple[float, float]]


def phases(group: Group) -> Picture | None:
    """Draw the seconds of an epoch by phase, a bar for each cell; None where no cell has phases.

    Where a cell's seconds are not known the bars are shares of a step instead.
    """
    cells = [cell for cell in ordered(group) if cell.phases]
    if not cells:
        return None
    found = {cell.cell: cell.measures.get("seconds") for cell in cells}
    seconds = {cell: each.mean or 0.0 for cell, each in found.items() if each}
    timed = all(seconds.get(cell.cell) for cell in cells)
    unit = "seconds per epoch" if timed else "% of a training step"
    lengths = seconds if timed else {cell.cell: 100.0 for cell in cells}
    names = longest([fitting(_name(cell), _LETTERS) for cell in cells])

    def draw(canvas: Canvas) -> None:
        left = 6 if canvas.narrow else 26 + 7.2 * names
        axes = canvas.axes(left, 2, 14, 44)
        rows(axes, len(cells))
        least = 0.14 if canvas.narrow else 0.05
        for row, cell in enumerate(cells):
            _bar(canvas, axes, row, cell, lengths[cell.cell], least * max(lengths.values()))
            up = 19 if canvas.narrow else 0
            beside(axes, row, fitting(_name(cell), _LETTERS), 0, -left, up=up)
        axes.set_xlim(0, max(lengths.values()) * 1.01)
        axes.set_xlabel(unit)

    return Picture(
        f"Bars, {unit}, of each configuration, split into {', '.join(PHASES)}. "
        "The table has every number.",
        draw,
        lambda narrow: (46 if narrow else 26) * len(cells) + 50,
    )


def _bar(
    canvas: Canvas, axes: Axes, row: int, cell: CellReport, length: float, least: float
) -> None:
    """Draw the bar of a cell. least: length from which on a part holds its percentage."""
    left, phases = 0.0, cell.phases or {}
    for phase in PHASES:
        share = phases.get(phase) or 0.0
        part = share / 100 * length
        (bar,) = axes.barh(
            row,
            part,
            0.44 if canvas.narrow else 0.7,
            left=left,
            color=COLORS[f"phase-{phase}"],
            hatch=HATCHES[phase],
            edgecolor=COLORS["hatch"],
            linewidth=0,
        )
        bar.set_gid(canvas.tip(f"{_name(cell)}: {phase} {share:.1f} %"))
        if part > least:
            middle = left + part / 2
            axes.text(middle, row, f"{share:.0f} %", ha="center", va="center", fontsize=12)
        left += part


def curves(group: Group) -> Picture | None:
    """Draw the score of every run over epochs, a panel for each cell; None without a line."""
    found: dict[Cell, list[tuple[int | None, Line]]] = {}
    for curve in group.curves:
        if line := _line(curve):
            found.setdefault(curve.cell, []).append((curve.seed, line))
    cells = [cell for cell in ordered(group) if cell.cell in found]
    if not any(len(line) > 1 for cell in cells for _, line in found[cell.cell]):
        return None
    points = [point for cell in cells for _, line in found[cell.cell] for point in line]
    reference = _mean([line for _, line in found.get(PLAIN, [])])

    def columns(narrow: bool) -> int:
        return min(2 if narrow else 3, len(cells))

    def draw(canvas: Canvas) -> None:
        across = columns(canvas.narrow)
        width, height = (72 * inches for inches in canvas.figure.get_size_inches())
        panels = canvas.figure.subplots(
            -(-len(cells) // across), across, sharex=True, sharey=True, squeeze=False
        )
        canvas.figure.subplots_adjust(
            46 / width, 44 / height, 1 - 6 / width, 1 - 22 / height, wspace=0.07, hspace=0.3
        )
        for axes in panels.flat[len(cells) :]:
            axes.set_visible(False)
        for axes, cell in zip(panels.flat, cells, strict=False):
            axes.set_title(fitting(_name(cell), 18 if canvas.narrow else 30), parse_math=False)
            axes.grid(axis="y")
            axes.tick_params(length=3)
            if reference and cell.cell != PLAIN:
                axes.plot(*zip(*reference, strict=True), color=_MUTED, lw=1.1, ls=(0, (3, 2)))
            for seed, line in found[cell.cell]:
                last = with_unit(score_text(line[-1][1], group.unit), group.unit)
                (drawn,) = axes.plot(*zip(*line, strict=True), color=_ACCENT, lw=1.5, alpha=0.7)
                drawn.set_gid(canvas.tip(f"{_name(cell)}, seed {seed}: {last}"))
        panels[0, 0].set_ylim(*_around([y for _, y in points]))
        panels[0, 0].set_xlim(0, 1.02 * max(x for x, _ in points))
        panels[0, 0].locator_params(axis="x", nbins=4, integer=True)
        panels[0, 0].locator_params(axis="y", nbins=4)
        middle = (46 + (width - 52) / 2) / width
        canvas.figure.text(middle, 6 / height, "epochs", ha="center", color=_MUTED, fontsize=12)

    return Picture(
        f"{in_words(f'Test {group.score}', group.unit)} over epochs, a panel for each "
        "configuration and a line for each run; dashed: the mean of none, fp32.",
        draw,
        lambda narrow: -(-len(cells) // columns(narrow)) * (122 if narrow else 168) + 60,
    )


def _name(cell: CellReport) -> str:
    return one_line(cell.label or str(cell.cell))


def _around(values: Sequence[float]) -> tuple[float, float]:
    """Return limits that show all values, even where they are all equal."""
    margin = 0.06 * (max(values) - min(values)) or 1.0
    return min(values) - margin, max(values) + margin


def _line(curve: Curve) -> Line:
    """Return a curve's points where both values are known, thinned to what a panel can show."""
    line = [(x, y) for x, _, y in curve.points if x is not None and y is not None]
    step = -(-len(line) // _POINTS)
    return [*line[:-1:step], line[-1]] if line else []


def _mean(lines: Sequence[Line]) -> Line:
    """Return the mean of curves point by point, as far as all of them have points."""
    columns = zip(*lines, strict=False)
    return [
        (sum(x for x, _ in points) / len(points), sum(y for _, y in points) / len(points))
        for points in columns
    ]
