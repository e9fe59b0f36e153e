"""How a study's cells scale with their processes: speed-up, efficiency, and the words for them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

from ninefold.report.answer.evidence import Evidence
from ninefold.report.answer.pairs import Pairs
from ninefold.report.answer.tree import Chip, Scaling, ScalingPoint, Series
from ninefold.report.answer.wording import how_many
from ninefold.report.data.cell import PLAIN, Cell
from ninefold.report.data.runs import Run
from ninefold.report.numbers import counted, plural
from ninefold.report.stats.measures import SECONDS
from ninefold.stats.statistics import estimate
from ninefold.stats.verdicts import OTHER_HOSTS


def scaling(evidence: Evidence) -> Scaling | None:
    """Return how the cells of a group scale, None where their processes were not swept."""
    if evidence.group.scaling is None:
        return None
    found: dict[tuple[str, str], list[Cell]] = {}
    for cell in evidence.cells:
        if cell.processes is not None and _timed(evidence, cell):
            found.setdefault((cell.parallel, cell.amp), []).append(cell)
    series = [_series(evidence, cells) for cells in found.values() if len(cells) > 1]
    return Scaling(evidence.group.scaling, series) if series else None


def _series(evidence: Evidence, cells: Sequence[Cell]) -> Series:
    """The cells of one strategy and precision, the fewest processes first."""
    parallel, amp, _ = cells[0]
    plain = Cell(PLAIN.parallel, amp)
    base, pairs = plain if _timed(evidence, plain) else cells[0], evidence.pairs
    points = [_point(evidence, pairs, base, cell) for cell in cells]
    enough = _enough(pairs, [point for point in points if not point.oversubscribed])
    found = Series(parallel, amp, base, points, enough, said=[])
    return replace(found, said=_sentences(found, str(evidence.group.scaling), evidence))


def _point(evidence: Evidence, pairs: Pairs, base: Cell, cell: Cell) -> ScalingPoint:
    processes = _processes(evidence, cell)
    crowded = any(run.oversubscribed for run in _timed(evidence, cell))
    speedup = _speedup(evidence, pairs, base, cell)
    ideal = processes / _processes(evidence, base)
    value, low, high = (
        None if end is None or crowded else end / ideal for end in speedup
    )  # with too few cores or GPUs no ideal is known
    return ScalingPoint(
        processes=processes,
        cell=cell,
        oversubscribed=crowded,
        verdict=None if cell == base else pairs.verdict(base, cell),
        speedup=speedup[0],
        speedup_low=speedup[1],
        speedup_high=speedup[2],
        efficiency=value,
        efficiency_low=low,
        efficiency_high=high,
        step_seconds=evidence.step_seconds(cell),
    )


def _speedup(
    evidence: Evidence, pairs: Pairs, base: Cell, cell: Cell
) -> tuple[float | None, float | None, float | None]:
    """How many times as fast as the base a cell is, and its interval.

    That of their pair; or, of a cell on the hosts of the base and more, which has no verdict, of
    its seeds alone.
    """
    if cell == base:
        return 1.0, None, None
    if (ratio := pairs.ratio(base, cell)) is not None:
        low, high = (1 / end if end else None for end in (ratio[2], ratio[1]))
        return 1 / ratio[0], low, high
    times, hosts = evidence.values(SECONDS), evidence.hosts(SECONDS)
    one, own = times.get(base, {}), times.get(cell, {})
    logs = {
        key: math.log(one[key] / own[key])
        for key in one.keys() & own.keys()
        if one[key] > 0 < own[key]
        if set(hosts[base][key]) < set(hosts[cell][key])
    }
    found = estimate(logs)
    mean, low, high = (
        None if end is None else math.exp(end) for end in (found.mean, found.low, found.high)
    )
    return mean, low, high


def _enough(pairs: Pairs, points: Sequence[ScalingPoint]) -> int | None:
    """The processes from which on each measured larger number is shown not to be faster."""
    for number, point in enumerate(points[:-1]):
        others = [other.cell for other in points[number + 1 :]]
        if {pairs.verdict(point.cell, other) for other in others} <= {"slower", "tie"}:
            return point.processes
    return None


def _timed(evidence: Evidence, cell: Cell) -> list[Run]:
    """The runs of a cell that its time is taken from."""
    return [run for run in SECONDS.source(evidence.group) if run.ok and run.cell == cell]


def _processes(evidence: Evidence, cell: Cell) -> int:
    return max([1, *(run.processes or 1 for run in evidence.runs(cell))])


def best_of(scales: Scaling) -> tuple[Series, ScalingPoint] | None:
    """Return the fastest with more than one process, and its series; None if none is known."""
    points = [
        (series, point)
        for series in scales.series
        for point in series.points
        if point.processes > 1 and point.speedup is not None and not point.oversubscribed
    ]
    return max(points, key=lambda found: found[1].speedup or 0.0, default=None)


def chips(scales: Scaling, evidence: Evidence) -> list[Chip]:
    """Return the speed-up of the fastest with more than one process, with its interval."""
    if (found := best_of(scales)) is None:
        return []
    series, best = found
    if best.speedup is None or best.speedup_low is None or best.speedup_high is None:
        return []
    of = f"{evidence.label(best.cell)}, times as fast as {evidence.label(series.base)}"
    text = (
        f"{best.speedup:.2f} ({evidence.settings.confidence:.3g} % interval "
        f"{best.speedup_low:.2f} to {best.speedup_high:.2f})"
    )
    return [Chip(of, text, "good" if best.speedup_low > 1 else "even")]


def headline(scales: Scaling) -> tuple[str, bool]:
    """Return in at most 14 words whether more processes are faster, and whether that is shown.

    Times of other hosts have no verdict of their own: the interval of their seeds is used there.
    """
    if (found := best_of(scales)) is None:
        return "No answer: no speed-up of more processes is known.", False
    series, best = found
    speedup, what = best.speedup or 1.0, f"{best.processes} processes ({best.cell.parallel})"
    if best.verdict == "faster" or (best.speedup_low or 0.0) > 1:
        unit = "as fast as" if scales.kind == "strong" else "the examples a second of"
        return f"Use {what}: {how_many(speedup)} times {unit} {_one(series)}.", True
    if best.verdict in ("slower", "tie") or (best.speedup_high or math.inf) < 1:
        if speedup >= 1:
            return f"Do not scale out: {what} are no faster than {_one(series)}.", True
        return f"Do not scale out: {what} are only {speedup:.2f} times as fast.", True
    return f"Not decided: {what} may be faster or slower than {_one(series)}.", False


def _one(series: Series) -> str:
    return "one" if series.base.processes in (None, 1) else f"{series.base.processes}"


def _sentences(series: Series, kind: str, evidence: Evidence) -> list[str]:
    """Return what a series shows. kind: strong or weak."""
    measured = [point for point in series.points if not point.oversubscribed]
    said = [_best(series, measured, kind, evidence), _what_pays(series, measured, evidence)]
    if crowded := [point.cell for point in series.points if point.oversubscribed]:
        said.append(
            f"{evidence.labels(crowded)} had fewer cores or GPUs than processes: "
            f"{plural(crowded, 'it is', 'they are')} drawn hollow and "
            f"{plural(crowded, 'has', 'have')} no efficiency."
        )
    return [text for text in said if text]


def _best(series: Series, points: Sequence[ScalingPoint], kind: str, evidence: Evidence) -> str:
    base, confidence = evidence.label(series.base), evidence.settings.confidence
    others = [point for point in points if point.cell != series.base]
    more = [point for point in others if point.processes > 1]
    if more and all(point.verdict == OTHER_HOSTS for point in more):
        best = max(more, key=lambda point: point.speedup or 0.0)
        text = (
            f"Its times are of different hosts than those of {base}, or of more hosts: "
            "judged by the interval of its seeds"
        )
        if best.speedup is None:
            return f"{text}, of which there is none."
        return (
            f"{text}, at best {_speed(best, kind, '95 % interval of its seeds', evidence, base)}."
        )
    faster = [point for point in others if point.verdict == "faster" and point.speedup]
    if not faster:
        return f"No number of its processes is shown to be faster than {base}."
    best = max(faster, key=lambda point: point.speedup or 0.0)
    interval = f"{confidence:.3g} % interval"
    return f"{_speed(best, kind, interval, evidence, base)}{_of_ideal(best)}."


def _speed(point: ScalingPoint, kind: str, of: str, evidence: Evidence, base: str) -> str:
    """How many times as fast as the base a point is. of: what its interval is called."""
    what = "is" if kind == "strong" else "trains"
    unit = "as fast as" if kind == "strong" else "as many examples a second as"
    text = f"{evidence.label(point.cell)} {what} {point.speedup:.2f} times {unit} {base}"
    if point.speedup_low is not None and point.speedup_high is not None:
        text += f" ({of} {point.speedup_low:.2f} to {point.speedup_high:.2f})"
    return text


def _of_ideal(point: ScalingPoint) -> str:
    return "" if point.efficiency is None else f", {100 * point.efficiency:.0f} % of the ideal"


def _what_pays(series: Series, points: Sequence[ScalingPoint], evidence: Evidence) -> str:
    if len(points) < 2:
        return ""
    if series.enough is None:
        return "From which number on more processes do not pay is not shown."
    more = [point.cell for point in points if point.processes > series.enough]
    end = plural(more, "is slower or ties", "are slower or tie")
    few = counted(series.enough, "process", "processes")
    return f"More than {few} are shown not to pay: {evidence.labels(more)} {end}."
