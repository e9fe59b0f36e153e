"""Draws the plots of report.html: phases, speed-ups, learning curves and drift.

Each is drawn for wide and for narrow screens: a plot that is only scaled down cannot be read.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

from ninefold.errors import one_line
from ninefold.report.answer.tree import Curve, Group, Round
from ninefold.report.data.cell import PLAIN, Cell
from ninefold.report.numbers import in_words, score_text, with_unit
from ninefold.report.render.plots import (
    ON_PAGE,
    Canvas,
    Picture,
    alone,
    fitting,
    name_rows,
    phase_bars,
    picture,
    say,
    text,
)
from ninefold.result import PHASES

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_INK, _MUTED, _ACCENT, _WARN = (ON_PAGE[name] for name in ("ink", "muted", "accent", "warn"))
_LABEL = 100  # CSS pixels that a label of a round needs
_POINTS = 150  # of one curve at most: more cannot be seen in a panel
Line = list[tuple[float, float]]


def times(group: Group) -> str | None:
    """Draw the seconds of an epoch of each cell as SVG that stands alone: rounds or seeds as dots,
    the mean and its 95 % interval; None where no cell has any.
    """
    cells = [cell for cell in group.cells if cell.measures.get("seconds")]
    found = {cell.cell: cell.measures["seconds"] for cell in cells}
    if not any(figures and figures.mean for figures in found.values()):
        return None
    base = found.get(PLAIN)

    def draw(canvas: Canvas) -> None:
        axes = canvas.axes(left=106, top=2, right=14, bottom=42)
        for row, figures in enumerate(found.values()):
            if figures is None or figures.mean is None:
                continue
            values = list(figures.values.values())
            if (
                figures.low and figures.high and figures.high < 2 * max(values)
            ):  # else it says nothing
                axes.plot([figures.low, figures.high], [row, row], color=_INK, lw=2)
            axes.plot([figures.mean] * 2, [row - 0.3, row + 0.3], color=_INK, lw=3)
            axes.plot(values, [row] * len(values), "o", ms=6, color=_ACCENT, alpha=0.5, zorder=3)
        if base is not None and base.mean is not None:
            axes.axvline(base.mean, color=_MUTED, lw=1, ls=(0, (3, 3)), zorder=0)
        axes.set_xlim(left=0)
        axes.locator_params(axis="x", nbins=6)
        axes.set_xlabel("seconds per epoch")
        name_rows(axes, [str(cell) for cell in found])

    return alone(picture(draw, lambda narrow: 26 * len(found) + 44, _about_times(group)).wide)


def _about_times(group: Group) -> str:
    one = "timing round or run" if group.timing_rounds else "run"
    return f"Seconds per epoch of each cell: a dot for each {one}, the mean and its 95 % interval."


def phases(group: Group) -> Picture | None:
    """Draw the seconds of an epoch by phase, a bar for each cell; None where no cell has phases.

    Where a cell's seconds are not known the bars are shares of a step instead.
    """
    cells = [cell for cell in group.cells if cell.phases]
    if not cells:
        return None
    seconds: dict[Cell, float] = {}
    for cell in cells:
        figures = cell.measures.get("seconds")
        seconds[cell.cell] = (figures.mean if figures else None) or 0.0
    timed = all(seconds.values())
    unit = "seconds per epoch" if timed else "% of a training step"
    lengths = seconds if timed else dict.fromkeys(seconds, 100.0)

    def draw(canvas: Canvas) -> None:
        axes = canvas.axes(left=106, top=2, right=8 if canvas.narrow else 14, bottom=42)
        least = 0.14 if canvas.narrow else 0.07
        phase_bars(axes, group.cells, lengths, ON_PAGE, least, canvas.tip)
        axes.set_xlabel(unit)

    return picture(
        draw,
        lambda narrow: 26 * len(group.cells) + 44,
        f"Stacked bars, {unit}, of each cell split into {', '.join(PHASES)}. "
        "The table below has every number.",
    )


def speedups(group: Group) -> Picture | None:
    """Draw the speed-up over one device in the same precision; None where no cell has one."""
    found = [cell.speedup for cell in group.cells if cell.speedup]
    if not found:
        return None
    most = max(max(speedup.value, speedup.ideal) for speedup in found)
    cells = [cell for cell in group.cells if cell.speedup or cell.cell.parallel != PLAIN.parallel]

    def draw(canvas: Canvas) -> None:
        axes = canvas.axes(left=106, top=2, right=92 if canvas.narrow else 150, bottom=42)
        for row, cell in enumerate(cells):
            if not cell.speedup:
                say(axes, most * 0.01, row, cell.status or "not known", ON_PAGE)
                continue
            value, ideal = cell.speedup.value, cell.speedup.ideal
            (bar,) = axes.barh(row, value, 0.5, color=_ACCENT, alpha=0.75)
            bar.set_gid(canvas.tip(f"{cell.cell}: ×{value:.2f}, ideal ×{ideal:.2f}"))
            axes.plot([ideal, ideal], [row - 0.42, row + 0.42], color=_INK, lw=2)
            share = f"{100 * value / ideal:.0f} %" if ideal else ""
            words = f"×{value:.2f}, {share}" if canvas.narrow else f"×{value:.2f}, {share} of ideal"
            text(axes, max(value, ideal) + most * 0.02, row, words)
        axes.axvline(1, color=_MUTED, lw=1, ls=(0, (3, 3)), zorder=0)
        axes.set_xlim(0, most * 1.02)
        axes.locator_params(axis="x", nbins=5)
        axes.set_xlabel("times as fast")
        name_rows(axes, [str(cell.cell) for cell in cells])

    return picture(
        draw,
        lambda narrow: 24 * len(cells) + 44,
        "Bars of each cell's speed-up, with a mark at the ideal for the devices that it used.",
    )


def curves(group: Group, over: int) -> Picture | None:
    """Draw the score of every run over epochs (`over` 0) or seconds (1), a panel per cell."""
    found: dict[Cell, list[tuple[int | None, Line]]] = {}
    for curve in group.curves:
        if line := _line(curve, over):
            found.setdefault(curve.cell, []).append((curve.seed, line))
    if not found:
        return None
    unit = ("epochs", "seconds of training")[over]
    points = [point for lines in found.values() for _, line in lines for point in line]
    reference = _mean([line for _, line in found.get(PLAIN, [])])
    cells = group.cells

    def columns(narrow: bool) -> int:
        return min(2, len(cells)) if narrow else max(1, min(len(group.amps), len(cells), 5))

    def draw(canvas: Canvas) -> None:
        across = columns(canvas.narrow)
        down = -(-len(cells) // across)
        width, height = (72 * inches for inches in canvas.figure.get_size_inches())
        grid = canvas.figure.add_gridspec(
            down,
            across,
            left=46 / width,
            right=1 - 6 / width,
            top=1 - 22 / height,
            bottom=44 / height,
            wspace=0.07,
            hspace=0.26,
        )
        first: Axes | None = None
        for number, cell in enumerate(cells):
            row, column = divmod(number, across)
            axes = canvas.figure.add_subplot(grid[row, column], sharex=first, sharey=first)
            first = first or axes
            axes.set_title(fitting(str(cell.cell)), parse_math=False)
            axes.grid(axis="y")
            lines = found.get(cell.cell, [])
            if reference and lines and cell.cell != PLAIN:
                axes.plot(*zip(*reference, strict=True), color=_MUTED, lw=1.1, ls=(0, (3, 2)))
            for seed, line in lines:
                last = with_unit(score_text(line[-1][1], group.unit), group.unit)
                _draw_run(canvas, axes, f"{cell.cell}, seed {seed}: {last}", line, unit)
            if not lines:
                axes.text(
                    0.5,
                    0.5,
                    one_line(cell.status or "no curve"),
                    ha="center",
                    va="center",
                    color=_MUTED,
                    transform=axes.transAxes,
                    parse_math=False,
                )
            below = number + across < len(cells)
            axes.tick_params(labelbottom=not below, labelleft=column == 0, length=3)
        assert first is not None  # there is a cell
        _limit(first, points)
        first.locator_params(axis="x", nbins=4, integer=over == 0)
        first.locator_params(axis="y", nbins=4)
        middle = (46 + (width - 52) / 2) / width
        canvas.figure.text(middle, 6 / height, unit, ha="center", color=_MUTED, fontsize=11.5)

    def height(narrow: bool) -> int:
        return -(-len(cells) // columns(narrow)) * (122 if narrow else 168) + 60

    return picture(
        draw,
        height,
        f"{in_words(f'Test {group.score}', group.unit)} over {unit}, a panel for each cell and a "
        "line for each run; dashed: the mean of none-fp32.",
    )


def _draw_run(canvas: Canvas, axes: Axes, name: str, line: Line, unit: str) -> None:
    (drawn,) = axes.plot(
        *zip(*line, strict=True),
        color=_ACCENT,
        lw=1.5,
        alpha=0.7,
        marker="o" if len(line) == 1 else None,
        ms=4,
    )
    drawn.set_gid(canvas.tip(f"{name} at {line[-1][0]:.4g} {unit}"))


def _limit(axes: Axes, points: Line) -> None:
    """Set limits that show all points, even where they are all equal."""
    xs, ys = [x for x, _ in points], [y for _, y in points]
    margin = 0.06 * (max(ys) - min(ys)) or 1.0
    axes.set_ylim(min(ys) - margin, max(ys) + margin)
    alone = min(xs) == max(xs)
    axes.set_xlim(*((min(xs) - 1, max(xs) + 1) if alone else (0, max(xs) * 1.02)))


def _line(curve: Curve, over: int) -> Line:
    """Return a curve's points where both values are known, thinned to what a panel can show."""
    line = [
        (x, point[2])
        for point in curve.points
        if (x := point[over]) is not None and point[2] is not None
    ]
    step = -(-len(line) // _POINTS)
    return [*line[:-1:step], line[-1]] if line else []


def _mean(lines: Sequence[Line]) -> Line:
    """Return the mean of curves point by point, as far as all of them have points."""
    columns = zip(*lines, strict=False)
    return [
        (sum(x for x, _ in points) / len(points), sum(y for _, y in points) / len(points))
        for points in columns
    ]


def drift(group: Group, limit: float | None) -> Picture | None:
    """Draw how much slower the machine was in each round than at its best; None if not known.

    limit: the share above which a round has drifted, None where there is none.
    """
    rounds = [(found, 100 * found.drift) for found in group.rounds if found.drift is not None]
    if not rounds:
        return None
    percent = [value for _, value in rounds]
    allowed = None if limit is None or limit > 1 else 100 * limit
    low, high = min(0.0, *percent), max(5.0, allowed or 0.0, *percent)

    def draw(canvas: Canvas) -> None:
        axes = canvas.axes(left=46, top=26, right=8, bottom=44)
        axes.grid(axis="y")
        axes.axhline(0, color=_MUTED, lw=1)
        if allowed is not None:
            axes.axhline(allowed, color=_WARN, lw=1, ls=(0, (3, 3)))
        apart = (canvas.width - 54) / (len(rounds) + 0.2)  # CSS pixels, from round to round
        labeled = -math.inf
        for place, (found, value) in enumerate(rounds):
            color = _WARN if found.drifted else _ACCENT
            axes.plot([place, place], [0, value], color=color, lw=2)
            marker = "X" if found.drifted else "o"
            (dot,) = axes.plot([place], [value], marker=marker, color=color, ms=8)
            what = _outcome(found)
            dot.set_gid(canvas.tip(f"round {found.number}: {value:.1f} %{what and ', ' + what}"))
            if what and (place - labeled) * apart > _LABEL:
                labeled = place
                axes.annotate(
                    what,
                    (place, value),
                    xytext=(0, 8),
                    textcoords="offset points",
                    ha="center",
                    fontsize=11,
                    color=_WARN,
                )
        every = -(-len(rounds) // (8 if canvas.narrow else 24))
        names = [found.number for found, _ in rounds[::every]]
        axes.set_xticks(range(0, len(rounds), every), names)
        axes.set_xlim(-0.6, len(rounds) - 0.4)
        axes.set_ylim(low - 0.08 * (high - low), high + 0.08 * (high - low))
        axes.locator_params(axis="y", nbins=4)
        axes.tick_params(length=3)
        axes.set_xlabel("round (2.2: its second try)")

    said = [
        f"round {found.number} {value:.1f} {_outcome(found)}".rstrip() for found, value in rounds
    ]
    return picture(
        draw,
        lambda narrow: 170,
        f"How much slower the machine was in each round than at its best, in percent: "
        f"{', '.join(said)}"
        + ("." if allowed is None else f"; dashed: {allowed:g}, above which a round has drifted."),
    )


def _outcome(found: Round) -> str:
    if not found.drifted:
        return ""
    return "drifted, counted" if found.counted else "drifted, repeated"
