"""The figures of a report: what its templates draw, in percent of a figure's width and height."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from ninefold.answer.answer import Compared
from ninefold.answer.cell import BASELINE, PLAIN
from ninefold.answer.fields import word
from ninefold.answer.measures import SCORE_KEY, SECONDS
from ninefold.errors import one_line
from ninefold.numbers import (
    MISSING,
    capitalized,
    counted,
    difference,
    number,
    three_digits,
    typeset,
    unit_of_difference,
    with_unit,
)
from ninefold.report.render.results import (
    difference_of,
    figures_of,
    ordered,
    reason,
    rounds_of,
    scores_alone,
    scores_of,
    style,
    verdict_of,
)
from ninefold.report.tree import CellReport, Group
from ninefold.score import PHASES

REACH = 2.5  # how far beyond the values an interval is drawn
LETTERS = 34  # of a configuration's name in a plot
TICKS_APART = {True: 24, False: 40}  # percent of a chart between two ticks; True: of speeds
Place = Callable[[float], float]


class Mark(NamedTuple):
    """A value in a chart. state: good, bad, open, out or even. at, low, high: places, or None."""

    text: str
    state: str
    at: float | None = None
    low: float | None = None
    high: float | None = None


class Row(NamedTuple):
    """A configuration in a plot, with a mark in each chart. note: why it is out, or its verdict."""

    label: str
    note: str
    style: str
    marks: list[Mark]


class Chart(NamedTuple):
    """One column of a plot. band: around `even`, where nothing differs, what counts as equal."""

    title: str
    ticks: list[tuple[float, str]]
    even: float
    band: tuple[float, float]


Column = tuple[Chart, list[Mark]]  # of a plot, with a mark for each configuration
Shown = tuple[Compared, str, str]  # of a mark: the value with its interval, as text, its state


@dataclass(frozen=True)
class Plot:
    """Each configuration against the baseline, with its intervals: a forest plot.

    charts: of the speeds, and beside them of the scores where these are known.
    """

    about: str
    caption: str
    charts: list[Chart]
    rows: list[Row]


class Bar(NamedTuple):
    """The seconds of a configuration's epoch, or a step, by phase in percent of it."""

    name: str
    text: str
    length: float
    phases: list[tuple[str, float]]


def plot(group: Group) -> Plot | None:
    """Return the plot of a group, of its speeds and its scores; None without a value."""
    cells = ordered(group)
    columns = [of_scores(cells, group)]
    if not scores_alone(group):
        scored = columns[0] if any(cell.seeds for cell in cells) and len(cells) > 1 else None
        columns = [of_speeds(cells, group) or of_seconds(cells, group), scored]
    found = [column for column in columns if column is not None]
    if not found or columns[0] is None:
        return None
    rows = [
        Row(_fitting(cell.label), _note(cell, group), style(cell), [*marks])
        for cell, *marks in zip(cells, *(marks for _, marks in found), strict=True)
    ]
    about = "; ".join(
        f"{row.label} {', '.join(mark.text for mark in row.marks)}{row.note and f', {row.note}'}"
        for row in rows
    )
    charts = [chart for chart, _ in found]
    titles = " and ".join(chart.title for chart in charts)
    caption = _caption(group, len(charts) > 1)
    return Plot(f"{capitalized(titles)}: {about}.", caption, charts, rows)


def of_speeds(cells: Sequence[CellReport], group: Group) -> Column | None:
    """Return the chart of the speeds over the baseline, and a mark for each configuration."""
    same = 1 + group.settings.same

    def shown(cell: CellReport) -> Shown | None:
        if (speed := cell.speedup) is None:
            return None
        verdict = verdict_of(cell)
        return speed, number(speed.value, 2), verdict.state if verdict else "even"

    return _column(f"speedup over {BASELINE} →", cells, shown, (1 / same, 1.0, same), log=True)


def of_seconds(cells: Sequence[CellReport], group: Group) -> Column | None:
    """Return the chart of the seconds of an epoch, of a study of processes without speeds.

    They have no verdict: times of full runs were not interleaved.
    """
    means = {cell.cell: mean for cell in cells if (mean := cell.mean(SECONDS.key))}
    base = means.get(PLAIN) or next(iter(means.values()), None)
    if group.scaling is None or not base:
        return None
    text, same = figures_of(group, SECONDS.key), 1 + group.settings.same

    def shown(cell: CellReport) -> Shown | None:
        found = cell.measures.get(SECONDS.key)
        if found is None or not found.mean:
            return None
        low = None if found.low is None else max(found.low, found.mean / REACH)
        return Compared(found.mean, low, found.high, ""), f"{text(cell).text} s", "even"

    return _column("← seconds an epoch", cells, shown, (base / same, base, base * same), log=True)


def of_scores(cells: Sequence[CellReport], group: Group) -> Column | None:
    """Return the chart of the differences of the scores to the baseline's, and the marks."""
    margin, score, alone = group.settings.margin, scores_of(group), scores_alone(group)
    band = (-margin, 0.0, 0.0) if group.better == "more" else (0.0, 0.0, margin)

    def shown(cell: CellReport) -> Shown | None:
        if (found := difference_of(cell, group)) is None:
            return None
        text = difference(found.value, group.unit)
        if cell.cell == PLAIN:
            text = with_unit(score(cell).text, group.unit)
        state = word(found.verdict).state or "even"
        return found, text, "even" if state == "good" and not alone else state

    unit = unit_of_difference(group.unit)
    arrow = "←" if group.better == "less" else "→"
    name = f"{group.score}, difference to {BASELINE}" if alone else group.score
    title = f"{name}{unit and f', {unit}'} {arrow}"
    return _column(title, cells, shown, band, log=False)


def _column(
    title: str,
    cells: Sequence[CellReport],
    shown: Callable[[CellReport], Shown | None],
    band: tuple[float, float, float],
    log: bool,
) -> Column | None:
    """A chart of values and their intervals. band: its ends, and between them where all is even."""
    found = [shown(cell) for cell in cells]
    known = [each[0] for each in found if each]
    if not known:
        return None
    limits = [end for each in known for end in (each.low, each.high) if end is not None]
    low, high = _ends([each.value for each in known], limits, (band[0], band[2]), log)
    place = _scale(low, high, log)

    def mark(cell: CellReport, each: Shown | None) -> Mark:
        if each is None:
            return Mark(MISSING, "out")
        of, text, state = each
        places = [None if end is None else place(end) for end in (of.value, of.low, of.high)]
        return Mark(typeset(text), "out" if reason(cell) else state, *places)

    ticks = apart(round_numbers(low, high, log), band[1], place, TICKS_APART[log])
    marked = [(place(tick), typeset(f"{tick:.10g}")) for tick in ticks]
    least, even, most = map(place, band)
    chart = Chart(title, marked, even, (least, most))
    return chart, [mark(*each) for each in zip(cells, found, strict=True)]


def apart(ticks: Sequence[float], first: float, place: Place, least: int) -> list[float]:
    """Return the ticks that are `least` percent apart; `first` is kept if it is one."""
    kept: list[float] = []
    for tick in sorted(ticks, key=lambda tick: tick != first):
        if all(abs(place(tick) - place(other)) >= least for other in kept):
            kept.append(tick)
    return sorted(kept)


def _note(cell: CellReport, group: Group) -> str:
    """Why a configuration is out, or else its verdict where that is not told by its place."""
    if scores_alone(group):
        found = difference_of(cell, group)
        return reason(cell) or (word(found.verdict).text if found else "")
    verdict = verdict_of(cell)
    return reason(cell) or (verdict.text if verdict else "")


def _caption(group: Group, both: bool) -> str:
    """What is drawn, of how many runs, in two sentences. both: whether speeds and scores are."""
    settings, scores = group.settings, scores_alone(group)
    margin = with_unit(f"{settings.margin:g}", unit_of_difference(group.unit))
    lost = f"no loss of {group.score}"
    if settings.margin:
        lost = f"{group.score} lost at most by {margin}, the margin"
    band = lost if scores else f"times equal within {100 * settings.same:g} %"
    if both:
        band += f", or {lost}"
    if group.timing_rounds and not scores:
        count = rounds_of(group)
    else:
        key = SCORE_KEY if scores else SECONDS.key
        found = [each for cell in group.shown if (each := cell.measures.get(key))]
        count = counted(max((each.n for each in found), default=0), "seed")
    if group.turns_left_out and not scores:
        share = max(1, round(100 * group.turns_left_out))
        count += f" without {share} % of the turns, which were disturbed"
    untimed = "" if group.asks_time or scores else "Times were not interleaved: no verdict."
    return (
        f"{count}; lines are {settings.confidence:.3g} % intervals, a band is {band}. "
        f"{untimed or 'Hollow: open, or left out where struck out.'}"
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
    seconds = [cell.mean(SECONDS.key) or 0.0 for cell in cells]
    timed = bool(seconds) and all(seconds)
    return [
        Bar(
            _fitting(cell.label),
            f"{three_digits(took)} s" if timed else "",
            round(100 * took / max(seconds), 2) if timed else 100,
            [(phase, round((cell.phases or {}).get(phase) or 0.0, 1)) for phase in PHASES],
        )
        for cell, took in zip(cells, seconds, strict=True)
    ]
