"""The figures of a report: what its templates draw, in percent of a figure's width and height."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from ninefold.errors import one_line
from ninefold.report.answer.tree import CellReport, Compared, Group, Report
from ninefold.report.data.cell import BASELINE, PLAIN, Cell
from ninefold.report.numbers import (
    MISSING,
    capitalized,
    counted,
    difference,
    number,
    score_text,
    typeset,
    unit_of_difference,
    with_unit,
)
from ninefold.report.render.results import (
    difference_of,
    name_of,
    ordered,
    reason,
    scores_alone,
    speed_of,
    style,
)
from ninefold.report.render.tables import word
from ninefold.report.stats.measures import SCORE_KEY, SECONDS
from ninefold.score import PHASES

REACH = 2.5  # how far beyond the values an interval is drawn
LETTERS = 34  # of a configuration's name in a plot
MAX_POINTS = 150  # of one curve: more cannot be seen in a panel
Place = Callable[[float], float]


class Row(NamedTuple):
    """A configuration in a plot. at, low, high: places; None where there is none."""

    label: str
    text: str
    reason: str
    verdict: str
    state: str
    style: str
    at: float | None
    low: float | None
    high: float | None


@dataclass(frozen=True)
class Plot:
    """Each configuration against the baseline, with its interval: a forest plot.

    band: around `even`, where nothing differs, what counts as equal.
    """

    title: str
    about: str
    caption: str
    rows: list[Row]
    ticks: list[tuple[float, str]]
    even: float
    band: tuple[float, float]


class Bar(NamedTuple):
    """The seconds of a configuration's epoch, or a step, by phase in percent of it."""

    name: str
    text: str
    length: float
    phases: list[tuple[str, float]]


class Line(NamedTuple):
    """A learning curve. points: as SVG has them; tip: what is told of it."""

    points: str
    tip: str


class Panel(NamedTuple):
    """The learning curves of a configuration, with the baseline's mean."""

    name: str
    ticks: list[tuple[float, str]]
    baseline: str
    lines: list[Line]


def plot(group: Group, report: Report) -> Plot | None:
    """Return the plot of a group, of its speeds or of its scores; None without a value."""
    scores = scores_alone(group)
    found = [
        (cell, difference_of(cell, group) if scores else speed_of(cell)) for cell in ordered(group)
    ]
    same, margin = 1 + group.settings.same, group.settings.margin
    even, band = 1.0, (1 / same, same)
    if scores:
        even, band = 0.0, (-margin, 0.0) if group.better == "more" else (0.0, margin)
    drawn = [each for _, each in found if each is not None]
    if not drawn:
        return None
    values = [each.value for each in drawn]
    limits = [end for each in drawn for end in (each.low, each.high) if end is not None]
    low, high = _ends(values, limits, band, log=not scores)
    place = _scale(low, high, log=not scores)

    def row(cell: CellReport, each: Compared | None) -> Row:
        name = _fitting(name_of(cell))
        if each is None:
            why = reason(cell) or "not known"
            return Row(name, MISSING, why, "", "open", "out", None, None, None)
        text = difference(each.value, group.unit) if scores else number(each.value, 2)
        text = "0" if scores and cell.cell == PLAIN else text
        told = word(each.verdict)
        places = [None if end is None else place(end) for end in (each.value, each.low, each.high)]
        return Row(name, typeset(text), reason(cell), *told, style(cell), *places)

    rows = [row(*each) for each in found]
    title = f"times as fast as {BASELINE}"
    if scores:
        title = f"{group.score}, difference to {BASELINE}"
        title += f", {unit}" if (unit := unit_of_difference(group.unit)) else ""
    told = "; ".join(f"{row.label} {row.text}, {row.reason or row.verdict}" for row in rows)
    arrow = "←" if scores and group.better == "less" else "→"
    return Plot(
        f"{title} {arrow}",
        f"{capitalized(title)}: {told}.",
        _caption(group, report),
        rows,
        [(place(tick), typeset(f"{tick:.10g}")) for tick in round_numbers(low, high, not scores)],
        place(even),
        (place(band[0]), place(band[1])),
    )


def _caption(group: Group, report: Report) -> str:
    """What is better, of how many runs, on which machine."""
    settings, scores = group.settings, scores_alone(group)
    confidence, band = settings.confidence, f"equal within {100 * settings.same:g} %"
    if scores:
        confidence = settings.score_confidence
        margin = with_unit(f"{settings.margin:g}", unit_of_difference(group.unit))
        band = f"lost at most the margin, {margin}"
    unit = "repetition" if group.timing_rounds and not scores else "seed"
    key = SCORE_KEY if scores else SECONDS.key
    found = [each for cell in group.shown if (each := cell.measures.get(key))]
    count = counted(max((each.n for each in found), default=0), unit)
    better = "Left" if scores and group.better == "less" else "Right"
    if group.turns_left_out and not scores:
        share = max(1, round(100 * group.turns_left_out))
        count += f" without {share} % of the time slices, which were disturbed"
    return (
        f"{better} is better. {count}; lines: {confidence:.3g} % intervals; band: {band}; "
        f"hollow: open; struck out: left out. {report.machine.rstrip('.')}."
    )


def _ends(
    values: Sequence[float], limits: Sequence[float], band: tuple[float, float], log: bool
) -> tuple[float, float]:
    """The ends of an axis: intervals are cut where they reach far beyond the values."""
    low, high = min(values), max(values)
    if log:
        near = [end for end in limits if low / REACH <= end <= high * REACH]
    else:
        width = REACH * max(high - low, band[1] - band[0])
        near = [end for end in limits if low - width <= end <= high + width]
    return min([low, *near, band[0]]), max([high, *near, band[1]])


def _scale(low: float, high: float, log: bool) -> Place:
    """Where a value stands on an axis between these, which leaves some room at both ends."""
    change = (lambda value: math.log(max(value, 1e-12))) if log else float
    width = change(high) - change(low) or 1.0

    def place(value: float) -> float:
        share = (change(value) - change(low)) / width
        return round(min(max(3 + 94 * share, 0), 100), 2)

    return place


def round_numbers(low: float, high: float, log: bool = False) -> list[float]:
    """Return a few round numbers between two."""
    if log and high > 8 * low > 0:
        powers = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
        for steps in ((1, 2, 5), (1,)):
            found = [s * 10.0**power for power in powers for s in steps]
            found = [number for number in found if low <= number <= high]
            if len(found) < 7:
                break
        return found
    size = 10.0 ** math.floor(math.log10((high - low) / 2 or 1.0))
    for step in (5 * size, 2 * size, size):
        found = [n * step for n in range(math.ceil(low / step), math.floor(high / step) + 1)]
        if len(found) > 2:
            break
    return found


def _fitting(name: str) -> str:
    """A name shortened to so many letters, without its middle: ends often tell it apart."""
    name = one_line(name)
    half = LETTERS // 2
    return name if len(name) <= LETTERS else f"{name[: half - 1]}…{name[-half:]}"


def phases(group: Group) -> list[Bar]:
    """Return the seconds of an epoch by phase, a bar for each configuration with phases.

    Where those of one are not known, all bars are shares of a step instead.
    """
    cells = [cell for cell in ordered(group) if cell.phases]
    found = [cell.measures.get(SECONDS.key) for cell in cells]
    seconds = [(each and each.mean) or 0.0 for each in found]
    timed = bool(seconds) and all(seconds)
    return [
        Bar(
            _fitting(name_of(cell)),
            f"{took:.3g} s" if timed else "",
            round(100 * took / max(seconds), 2) if timed else 100,
            [(phase, round((cell.phases or {}).get(phase) or 0.0, 1)) for phase in PHASES],
        )
        for cell, took in zip(cells, seconds, strict=True)
    ]


def curves(group: Group) -> list[Panel]:
    """Return the score of every run over epochs, a panel for each cell; none without a line."""
    found: dict[Cell, list[tuple[int | None, list[tuple[float, float]]]]] = {}
    for curve in group.curves:
        line = [(x, y) for x, _, y in curve.points if x is not None and y is not None]
        if line:
            thin = [*line[: -1 : -(-len(line) // MAX_POINTS)], line[-1]]
            found.setdefault(curve.cell, []).append((curve.seed, thin))
    lines = [line for each in found.values() for _, line in each]
    if not any(len(line) > 1 for line in lines):
        return []
    last = max(x for line in lines for x, _ in line)
    scores = [y for line in lines for _, y in line]
    low, high = min(scores), max(scores)
    up = _scale(low, high, log=False)

    def drawn(line: Sequence[tuple[float, float]]) -> str:
        return " ".join(f"{100 * x / last:.4g},{100 - up(y):.4g}" for x, y in line)

    def panel(cell: CellReport) -> Panel:
        return Panel(
            _fitting(name_of(cell)),
            [(round(100 - up(tick), 2), f"{tick:.10g}") for tick in round_numbers(low, high)[::2]],
            "" if cell.cell == PLAIN else drawn(_mean([line for _, line in found.get(PLAIN, [])])),
            [
                Line(drawn(line), f"seed {seed}: {_told(line[-1][1], group)}")
                for seed, line in found[cell.cell]
            ],
        )

    return [panel(cell) for cell in ordered(group) if cell.cell in found]


def _told(score: float, group: Group) -> str:
    return with_unit(score_text(score, group.unit), group.unit)


def _mean(lines: Sequence[list[tuple[float, float]]]) -> list[tuple[float, float]]:
    """The mean of curves point by point, as far as all of them have points."""
    return [
        (sum(x for x, _ in points) / len(points), sum(y for _, y in points) / len(points))
        for points in zip(*lines, strict=False)
    ]
