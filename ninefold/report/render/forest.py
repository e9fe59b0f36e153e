"""Draws each configuration's speed against the baseline's, with its interval: the figure.

Where a study asked for scores alone, it is their difference to the baseline's.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ninefold.report.answer.tree import CellReport, Group, Report
from ninefold.report.data.cell import BASELINE, PLAIN
from ninefold.report.numbers import (
    MISSING,
    counted,
    difference,
    typeset,
    unit_of_difference,
    with_unit,
)
from ninefold.report.render.plots import (
    COLORS,
    Canvas,
    Picture,
    alone,
    beside,
    fitting,
    longest,
    rows,
)
from ninefold.report.render.results import (
    margin_of,
    ordered,
    reason,
    safety_of,
    score_pair,
    scores_alone,
    style,
    two_decimals,
    verdict_of,
)
from ninefold.report.render.tables import word
from ninefold.report.stats.measures import SCORE_KEY, SECONDS

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_INK, _MUTED, _LINE = COLORS["ink"], COLORS["muted"], COLORS["line"]
_COLOR = {"good": COLORS["accent"], "bad": COLORS["warn"], "even": _INK, "open": _MUTED}
_SPAN = 3  # ratio of the largest speed to the smallest from which on their scale is logarithmic
_REACH = 2.5  # how far beyond the values an interval is drawn
_LETTERS = 30  # of a configuration's name
_ROW, _NARROW_ROW = 30, 46  # CSS pixels


@dataclass(frozen=True)
class Row:
    """A configuration in the plot. state: of its verdict; style: as of a row of the results."""

    label: str
    value: float | None
    low: float | None
    high: float | None
    text: str
    verdict: str
    style: str
    reason: str

    @property
    def said(self) -> str:
        """Its verdict in the words of the table."""
        return "baseline" if self.verdict == "baseline" else word(self.verdict).text

    @property
    def state(self) -> str:
        return "even" if self.verdict == "baseline" else word(self.verdict).state


@dataclass(frozen=True)
class Scale:
    """The axis of the plot. even: where nothing differs; band: around it, of what is equal."""

    title: str
    even: float
    band: tuple[float, float]
    log: bool
    more: bool  # whether values farther right are better

    def ends(self, found: Sequence[Row]) -> tuple[float, float]:
        """The ends of the axis: intervals are cut where they reach far beyond the values."""
        values = [row.value for row in found if row.value is not None]
        limits = [end for row in found for end in (row.low, row.high) if end is not None]
        low, high = min(values), max(values)
        if self.even == 1:
            near = [end for end in limits if low / _REACH <= end <= high * _REACH]
        else:
            width = _REACH * max(high - low, self.band[1] - self.band[0])
            near = [end for end in limits if low - width <= end <= high + width]
        return min([*values, *near, self.band[0]]), max([*values, *near, self.band[1]])


def figure(report: Report) -> str | None:
    """Return figure.svg: the plot of the first group; None where there is nothing to draw."""
    if not report.groups:
        return None
    drawn = plot(report.groups[0], report)
    return None if drawn is None else alone(drawn, caption(report.groups[0], report))


def plot(group: Group, report: Report) -> Picture | None:
    """Return the forest plot of a group; None without a value."""
    scale, found = _rows(group, report)
    return _forest(found, scale) if any(row.value is not None for row in found) else None


def caption(group: Group, report: Report) -> str:
    """Return the line below the plot: what is better, of how many runs, on which machine."""
    machine, settings = report.machine.rstrip("."), report.settings
    scores, confidence = scores_alone(group), settings.confidence
    band = f"equal within {100 * (settings.same or 0):g} %"
    if scores:
        confidence = settings.score_confidence or confidence
        band = f"lost at most the margin, {_margin(group, report)}"
    unit = "timing round" if group.timing_rounds and not scores else "seed"
    found = [each for cell in group.shown if (each := cell.measures.get(_key(group)))]
    count = counted(max((each.n for each in found), default=0), unit)
    better = "Left" if scores and group.better == "less" else "Right"
    intervals = f"{count}; lines: {confidence or 95:.3g} % intervals"
    how = f"{better} is better. {intervals}; band: {band}; hollow: open; struck out: left out"
    return f"{how}. {machine}."


def _key(group: Group) -> str:
    return SCORE_KEY if scores_alone(group) else SECONDS.key


def _margin(group: Group, report: Report) -> str:
    return with_unit(f"{margin_of(group, report):g}", unit_of_difference(group.unit))


def _rows(group: Group, report: Report) -> tuple[Scale, list[Row]]:
    """The rows of the plot and its scale."""
    if scores_alone(group):
        margin, unit = margin_of(group, report), unit_of_difference(group.unit)
        title = f"{group.score}, difference to {BASELINE}"
        scale = Scale(
            f"{title}, {unit}" if unit else title,
            0.0,
            (-margin, 0.0) if group.better == "more" else (0.0, margin),
            False,
            group.better == "more",
        )
        return scale, [_of_score(cell, group) for cell in ordered(group)]
    found = [_of_speed(cell) for cell in ordered(group)]
    values = [row.value for row in found if row.value] or [1.0]
    same = report.settings.same or 0.0
    name = f"times as fast as {BASELINE}"
    log = max(values) / min(values) > _SPAN
    return Scale(name, 1.0, (1 / (1 + same), 1 + same), log, True), found


def _of_speed(cell: CellReport) -> Row:
    speed = cell.speed
    if speed is None:
        return _empty(cell)
    return Row(
        cell.label or str(cell.cell),
        speed.times,
        speed.low,
        speed.high,
        two_decimals(speed.times),
        verdict_of(cell),
        style(cell),
        reason(cell),
    )


def _of_score(cell: CellReport, group: Group) -> Row:
    """A row of the plot of scores; its interval ends at the test's bound on the side of a loss."""
    label, why = cell.label or str(cell.cell), reason(cell)
    found = cell.measures.get(SCORE_KEY)
    if cell.cell == PLAIN and found and found.mean is not None:
        return Row(label, 0.0, None, None, "0", "baseline", style(cell), why)
    test, pair = safety_of(group, cell), score_pair(group, cell)
    if test is None or test.difference is None:
        return _empty(cell)
    low, high = (pair.low, pair.high) if pair else (None, None)
    if test.low is not None:
        low, high = (test.low, high) if group.better == "more" else (low, test.low)
    text = typeset(difference(test.difference, group.unit))
    return Row(label, test.difference, low, high, text, test.verdict, style(cell), why)


def _empty(cell: CellReport) -> Row:
    why = reason(cell) or "not known"
    return Row(cell.label or str(cell.cell), None, None, None, MISSING, "", "out", why)


def _forest(found: Sequence[Row], scale: Scale) -> Picture:
    names = longest([fitting(row.label, _LETTERS) for row in found])
    told = longest([row.reason for row in found])
    numbers = 22 + 8 * longest([row.text for row in found])  # CSS pixels of the numbers' column

    def draw(canvas: Canvas) -> None:
        narrow = canvas.narrow
        right = numbers if narrow or not told else numbers + 7 * told
        left = 6 if narrow else 26 + 7.2 * names
        axes = canvas.axes(left, 4, right, 48)
        rows(axes, len(found))
        low, high = scale.ends(found)
        _axis(axes, scale, low, high)
        axes.axvspan(*scale.band, color=_LINE, alpha=0.6, lw=0, zorder=0)
        axes.axvline(scale.even, color=_MUTED, lw=1, ls=(0, (2, 3)), zorder=0)
        for place, row in enumerate(found):
            _draw(canvas, axes, row, place, (left, numbers))

    said = "; ".join(f"{row.label} {row.text}, {row.reason or row.said}" for row in found)
    return Picture(
        f"{scale.title[:1].upper()}{scale.title[1:]}: {said}.",
        draw,
        lambda narrow: (_NARROW_ROW if narrow else _ROW) * len(found) + 52,
    )


def _axis(axes: Axes, scale: Scale, low: float, high: float) -> None:
    """Set the ends of the axis and round numbers on it."""
    if scale.log:
        axes.set_xscale("log")
        space = (high / low) ** 0.04
        axes.set_xlim(low / space, high * space)
        for steps in ((1, 2, 5), (1, 1.5, 2, 3, 5, 7)):
            places = [s * 10.0**e for e in range(-6, 7) for s in steps]
            ticks = [place for place in places if low / space <= place <= high * space]
            if len(ticks) >= 3:
                break
        axes.set_xticks(ticks, [f"{tick:g}" for tick in ticks])
        axes.minorticks_off()
    else:
        space = 0.04 * (high - low)
        axes.set_xlim(low - space, high + space)
        axes.locator_params(axis="x", nbins=6)
        axes.xaxis.set_major_formatter(lambda value, _: typeset(f"{value:.10g}"))
    axes.set_xlabel(f"{scale.title} {'→' if scale.more else '←'}")


def _draw(canvas: Canvas, axes: Axes, row: Row, place: int, margins: tuple[float, float]) -> None:
    """Draw a row: its name, interval, value and number. margins: those of the axes."""
    left, numbers = margins
    out, named = row.style == "out", row.style == "named"
    look: dict[str, Any] = {
        "color": _MUTED if out else _INK,
        "fontweight": "bold" if named else "normal",
    }
    label = fitting(row.label, _LETTERS)
    beside(axes, place, row.text, 1, 14, **look)
    if canvas.narrow:
        words = f"{label} ({row.reason})" if row.reason else label
        beside(axes, place, words, 0, -left, up=15, **look)
    else:
        beside(axes, place, label, 0, -left, **look)
        if out:
            axes.texts[-1].set_gid(canvas.tip(f"{row.label}: {row.reason}", struck=True))
        beside(axes, place, row.reason, 1, numbers, color=_MUTED, fontsize=12)
    if row.value is None:
        return
    color = _MUTED if out else _COLOR[row.state]
    first, last = axes.get_xlim()
    if row.low is not None and row.high is not None:
        ends = [max(row.low, first), min(row.high, last)]
        axes.plot(ends, [place, place], color=color, lw=3.2 if named else 2)
        for end, cut, marker in ((first, row.low < first, "<"), (last, row.high > last, ">")):
            if cut:
                axes.plot([end], [place], marker=marker, color=color, ms=6, clip_on=False)
    (dot,) = axes.plot(
        [row.value],
        [place],
        marker="D" if row.verdict == "baseline" else "o",
        ms=10 if named else 8,
        mfc=COLORS["paper"] if row.state == "open" and not out else color,
        mec=color,
        mew=1.8,
        zorder=3,
    )
    dot.set_gid(canvas.tip(f"{row.label}: {row.text}, {row.said}"))
