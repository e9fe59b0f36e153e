"""Says what more processes bring: the speedup and the efficiency of each number of them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ninefold.answer.answer import Answer, AnswerTable, Chip, Compared
from ninefold.answer.cell import PLAIN, Cell
from ninefold.answer.study_facts import StudyFacts
from ninefold.numbers import MISSING, capitalized, counted, number, plural
from ninefold.report.data.environment import values
from ninefold.report.data.recording import Recording
from ninefold.report.render.tables import word

UNTIMED = "Times of full training runs were not interleaved: the direction is no verdict."


@dataclass(frozen=True)
class Point:
    """One number of processes.

    speedup: over the base of its series; None: not known. ideal: the speedup with no loss.
    crowded: whether there were fewer cores than threads; then it has no efficiency.
    """

    cell: Cell
    processes: int
    speedup: Compared | None
    ideal: float
    step: float
    crowded: bool

    @property
    def efficiency(self) -> float | None:
        """Its share of the ideal speedup."""
        return None if self.speedup is None or self.crowded else self.speedup.value / self.ideal


@dataclass(frozen=True)
class Series:
    """The cells of one strategy and precision, the fewest processes first.

    base: what they are compared with: none in the same precision, else the fewest processes.
    base_step: the seconds of its step.
    """

    base: Cell
    base_step: float
    points: list[Point]

    @property
    def measured(self) -> list[Point]:
        """The points that had a core for each thread."""
        return [point for point in self.points if not point.crowded]

    def enough(self, facts: StudyFacts) -> int | None:
        """Return from how many processes on each measured larger number is shown not to pay."""
        for place, point in enumerate(self.measured[:-1]):
            more = self.measured[place + 1 :]
            if {facts.verdict(point.cell, each.cell) for each in more} <= {"slower", "tie"}:
                return point.processes
        return None


def answer(recording: Recording, facts: StudyFacts) -> Answer | None:
    """Return whether to scale out, None where the processes of the group were not swept."""
    found = series_of(recording, facts)
    if not found:
        return None
    table, kind = _table(found, facts), str(facts.group.scaling)
    if not facts.timed:
        lead = _direction(found, kind)
        return Answer(lead, False, reasons=[UNTIMED], table=table)
    reasons = [
        f"{each.points[0].cell.parallel}, {each.points[0].cell.amp}: {text}"
        for each in found
        for text in _sentences(each, kind, facts)
    ]
    points = [
        (point.speedup.value, point, each.base)
        for each in found
        for point in each.measured
        if point.processes > 1 and point.speedup is not None
    ]
    if not points:
        lead = "No answer: no speedup of more processes is known."
        return Answer(lead, False, reasons=reasons, table=table)
    _, best, base = max(points, key=lambda point: point[0])
    lead, named = _lead(best, base, kind)
    chips = _chips(best, base, facts)
    return Answer(lead, named is not None, named, chips=chips, reasons=reasons, table=table)


def _direction(found: Sequence[Series], kind: str) -> str:
    """Return what the times look like, in at most 14 words, where nothing is shown."""
    several = [
        (each.base_step / point.step * (point.ideal if kind == "weak" else 1.0), point)
        for each in found
        for point in each.points
        if point.processes > 1 and point.step
    ]
    if not several:
        return "No answer: no speedup of more processes is known."
    speed, best = max(several, key=lambda each: each[0])
    looks = "faster" if speed > 1 else "slower"
    name = f"{best.cell.parallel} x{best.processes}"
    return f"More processes look {looks}: {name} is {number(speed, 2)} times as fast."


def series_of(recording: Recording, facts: StudyFacts) -> list[Series]:
    """Return the series of a group whose processes were swept, those of one number left out."""
    if facts.group.scaling is None:
        return []
    about = recording.environment.get("environment") or {}
    cores = max((n for n in values(about.get("cores")) if isinstance(n, int)), default=None)
    found: dict[tuple[str, str], list[Cell]] = {}
    for cell in facts.cells:
        if cell.processes is not None and facts.group.step_seconds(cell) is not None:
            found.setdefault((cell.parallel, cell.amp), []).append(cell)
    return [_series(cells, facts, cores) for cells in found.values() if len(cells) > 1]


def _series(cells: Sequence[Cell], facts: StudyFacts, cores: int | None) -> Series:
    plain = Cell(PLAIN.parallel, cells[0].amp)
    base = plain if facts.group.step_seconds(plain) is not None else cells[0]
    step = facts.group.step_seconds(base) or 0.0
    return Series(base, step, [_point(cell, base, facts, cores) for cell in cells])


def _point(cell: Cell, base: Cell, facts: StudyFacts, cores: int | None) -> Point:
    runs = facts.group.completed(cell)
    processes = cell.processes or 1
    return Point(
        cell=cell,
        processes=processes,
        speedup=facts.speedup(cell, base),
        ideal=processes / (base.processes or 1),
        step=facts.group.step_seconds(cell) or 0.0,
        crowded=cores is not None
        and any(
            set(run.devices) == {"cpu"}
            and max(processes, run.threads or 0) > cores * max(len(run.on_hosts), 1)
            for run in runs
        ),
    )


def _lead(best: Point, base: Cell, kind: str) -> tuple[str, Cell | None]:
    """Whether more processes are faster, in at most 14 words; and the cell that is shown to be."""
    assert best.speedup is not None
    what = f"{best.processes} processes ({best.cell.parallel})"
    one = "one" if base.processes in (None, 1) else f"{base.processes}"
    if best.speedup.verdict == "faster":
        unit = "as fast as" if kind == "strong" else "the examples a second of"
        return f"Use {what}: {number(best.speedup.value, 2)} times {unit} {one}.", best.cell
    if best.speedup.verdict == "tie":
        return f"Do not scale out: {what} are no faster than {one}.", base
    if best.speedup.verdict == "slower":
        found = f"{best.speedup.value:.2f} times as fast"
        return f"Do not scale out: {what} are {found} as {one}.", base
    return f"Not decided: {what} may be faster or slower than {one}.", None


def _chips(best: Point, base: Cell, facts: StudyFacts) -> list[Chip]:
    """The speedup of the fastest with more than one process, with its interval."""
    assert best.speedup is not None
    if best.speedup.low is None or best.speedup.high is None:
        return []
    of = f"{facts.label(best.cell)}, speedup over {facts.label(base)}"
    text = f"{best.speedup.value:.2f} ({_interval(best.speedup, facts)})"
    return [Chip(of, text, "good" if best.speedup.low > 1 else "even")]


def _interval(speed: Compared, facts: StudyFacts) -> str:
    confidence = f"{facts.settings.confidence:.3g} % interval"
    return f"{confidence} {speed.low or 0.0:.2f} to {speed.high or 0.0:.2f}"


def _sentences(series: Series, kind: str, facts: StudyFacts) -> list[str]:
    """Return what a series shows. kind: strong or weak."""
    said = [_best(series, kind, facts)]
    if len(measured := series.measured) > 1:
        enough = series.enough(facts)
        if enough is None:
            said.append("From which number on more processes do not pay is not shown.")
        else:
            more = [point.cell for point in measured if point.processes > enough]
            said.append(
                f"More than {counted(enough, 'process', 'processes')} are shown not to pay: "
                f"{facts.labels(more)} {plural(more, 'is no faster', 'are no faster')}."
            )
    if crowded := [point.cell for point in series.points if point.crowded]:
        said.append(
            f"{facts.labels(crowded)} had fewer cores than threads: "
            f"{plural(crowded, 'it has', 'they have')} no efficiency, and decide nothing."
        )
    return said


def _best(series: Series, kind: str, facts: StudyFacts) -> str:
    base = facts.label(series.base)
    faster = [
        (point.speedup.value, point, point.speedup)
        for point in series.measured
        if point.speedup is not None and point.speedup.verdict == "faster"
    ]
    if not faster:
        return f"No number of its processes is shown to be faster than {base}."
    _, best, speed = max(faster, key=lambda point: point[0])
    what, unit = (
        ("is", "as fast as") if kind == "strong" else ("trains", "the examples a second of")
    )
    ideal = "" if best.efficiency is None else f", {100 * best.efficiency:.0f} % of the ideal"
    return (
        f"{facts.label(best.cell)} {what} {speed.value:.2f} times {unit} {base} "
        f"({_interval(speed, facts)}){ideal}."
    )


def _table(found: Sequence[Series], facts: StudyFacts) -> AnswerTable:
    """Return how the series scale, a row for each number of processes."""
    kind = str(facts.group.scaling)
    batch = "every step has the same global batch"
    if kind != "strong":
        batch = "every process has the same batch"
    return AnswerTable(
        "More processes",
        f"{capitalized(kind)} scaling: {batch}.",
        ["configuration", "speedup", "efficiency", "ms a step"],
        [_row(point, facts) for series in found for point in series.points],
    )


def _row(point: Point, facts: StudyFacts) -> list[str]:
    times = MISSING
    if (speed := point.speedup) is not None:
        times = number(speed.value, 2)
        if speed.low is not None and speed.high is not None:
            times += f" ({speed.low:.2f} to {speed.high:.2f})"
        times += f" {word(speed.verdict).text}"
    efficiency = MISSING if point.efficiency is None else f"{100 * point.efficiency:.0f} %"
    return [
        facts.label(point.cell),
        times,
        "too few cores" if point.crowded else efficiency,
        f"{1e3 * point.step:.3g}",
    ]
