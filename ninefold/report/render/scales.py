"""Shows how cells scale with their processes: a picture, and rows for tables."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from ninefold.report.answer.tree import Scaling, ScalingPoint, Series
from ninefold.report.data.cell import Cell
from ninefold.report.numbers import MISSING, between, number, three_digits
from ninefold.report.render.plots import COLORS, Canvas, Picture
from ninefold.report.render.tables import Column, Field, Table, Word, word

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_MUTED, _ACCENT = COLORS["muted"], COLORS["accent"]
_PANEL = 250  # CSS pixels, the height of a panel
_TITLE, _BELOW, _LEFT = 24, 46, 52


def table(series: Series, labels: Mapping[Cell, str]) -> Table:
    """Return how a series scales, a row for each number of processes."""
    rows = []
    for point in series.points:
        efficiency = MISSING if point.efficiency is None else _percent(point.efficiency)
        rows.append(
            [
                Field(labels.get(point.cell) or str(point.cell)),
                Field(
                    number(point.speedup, 2),
                    between(point.speedup_low, point.speedup_high, three_digits, ""),
                    word(point.verdict) if point.verdict else Word("base", ""),
                ),
                Field(
                    "oversubscribed" if point.oversubscribed else efficiency,
                    between(point.efficiency_low, point.efficiency_high, _percent, ""),
                ),
                Field(MISSING if point.step_seconds is None else f"{1e3 * point.step_seconds:.3g}"),
            ]
        )
    columns = [
        Column("configuration", number=False),
        *map(Column, ("times as fast", "efficiency", "ms a step")),
    ]
    return Table(f"{series.parallel}, {series.amp}, by processes", columns, rows)


def _percent(share: float) -> str:
    return f"{number(100 * share, 0)} %"


def draw(scaling: Scaling) -> Picture:
    """Draw speed-ups with their intervals over processes, a panel for each series."""

    def across(narrow: bool) -> int:
        return 1 if narrow else min(2, len(scaling.series))

    def paint(canvas: Canvas) -> None:
        columns = across(canvas.narrow)
        down = -(-len(scaling.series) // columns)
        width, height = (72 * inches for inches in canvas.figure.get_size_inches())
        grid = canvas.figure.add_gridspec(
            down,
            columns,
            left=_LEFT / width,
            right=1 - 8 / width,
            top=1 - _TITLE / height,
            bottom=_BELOW / height,
            wspace=0.16,
            hspace=(_TITLE + _BELOW) / (_PANEL - _TITLE - _BELOW),
        )
        for place, series in enumerate(scaling.series):
            axes = canvas.figure.add_subplot(grid[divmod(place, columns)])
            axes.set_title(f"{series.parallel}, {series.amp}", parse_math=False)
            _panel(canvas, axes, series)

    what = "; ".join(
        f"{series.parallel} {series.amp}: "
        + ", ".join(f"x{point.processes} {number(point.speedup, 2)}" for point in series.points)
        for series in scaling.series
    )
    return Picture(
        f"Speed-up over processes, measured: {what}. Dotted: the ideal. The table has the numbers.",
        paint,
        lambda narrow: _PANEL * -(-len(scaling.series) // across(narrow)),
    )


def _panel(canvas: Canvas, axes: Axes, series: Series) -> None:
    base = next((p for p in series.points if p.cell == series.base), None)
    one = 1 if base is None else base.processes
    counts = [point.processes for point in series.points]
    axes.set_xscale("log", base=2)
    axes.set_yscale("log", base=2)
    axes.plot(
        [min(counts), max(counts)],
        [min(counts) / one, max(counts) / one],
        color=_MUTED,
        lw=1,
        ls=(0, (1, 2)),
    )
    seen: list[float] = []
    for point in series.points:
        if point.speedup is None:
            continue
        seen += [point.speedup, *(e for e in (point.speedup_low, point.speedup_high) if e)]
        if point.speedup_low and point.speedup_high:
            ends = [point.speedup_low, point.speedup_high]
            axes.plot([point.processes] * 2, ends, color=_ACCENT, lw=1.5)
        (dot,) = axes.plot(
            [point.processes],
            [point.speedup],
            marker="o",
            ms=8,
            color=_ACCENT,
            mew=1.8,
            fillstyle="none" if point.oversubscribed else "full",
        )
        dot.set_gid(canvas.tip(_tip(point)))
    _ticks(axes, counts, [*seen, *(count / one for count in counts)])


def _ticks(axes: Axes, counts: Sequence[int], seen: Sequence[float]) -> None:
    places = sorted(set(counts))
    axes.set_xticks(places, [str(place) for place in places])
    low, high = min(seen), max(seen)
    powers = [2.0**power for power in range(-12, 13) if low / 1.6 <= 2.0**power <= high * 1.6]
    axes.set_yticks(powers, [f"{power:g}" for power in powers])
    axes.minorticks_off()
    axes.set_xlim(places[0] / 1.25, places[-1] * 1.25)
    axes.set_ylim(low / 1.25, high * 1.25)
    axes.tick_params(length=3)
    axes.grid(axis="y")
    axes.set_axisbelow(True)
    axes.set_xlabel("processes")
    axes.set_ylabel("times as fast")


def _tip(point: ScalingPoint) -> str:
    words = f"{point.cell}: {number(point.speedup, 2)}"
    if point.oversubscribed:
        return f"{words}, oversubscribed"
    return (
        words if point.efficiency is None else f"{words}, efficiency {_percent(point.efficiency)}"
    )
