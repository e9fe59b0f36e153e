"""Says what more processes bring: the speedup and the efficiency of each number of them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from ninefold.answer import leads
from ninefold.answer.answer import Answer, AnswerTable, Compared
from ninefold.answer.cell import PLAIN, Cell
from ninefold.answer.decision import decide
from ninefold.answer.fields import word
from ninefold.answer.reasons import exclusions
from ninefold.answer.study_facts import StudyFacts
from ninefold.numbers import MISSING, capitalized, counted, number, plural, three_digits
from ninefold.report.data.environment import values
from ninefold.report.data.recording import Recording

UNTIMED = "Times of full training runs were not interleaved: the direction is no verdict."
UNKNOWN = "No answer: no acceptable number of processes has a known speedup."


@dataclass(frozen=True)
class Point:
    """One number of processes.

    base: what it is compared with: none in the same precision, else the fewest processes.
    speedup: over the base; None: not known. ideal: the speedup with no loss.
    step: seconds. crowded: whether there were fewer cores than threads; then it has no efficiency.
    acceptable: whether it is not left out, and its score not shown to be worse.
    """

    cell: Cell
    base: Cell
    processes: int
    speedup: Compared | None
    ideal: float
    step: float
    crowded: bool
    acceptable: bool

    @property
    def efficiency(self) -> float | None:
        """Its share of the ideal speedup."""
        return None if self.speedup is None or self.crowded else self.speedup.value / self.ideal

    @property
    def times(self) -> float:
        """How many times as fast as the base it is; 0 where that is not known."""
        return 0.0 if self.speedup is None else self.speedup.value


@dataclass(frozen=True)
class Series:
    """The cells of one strategy and precision, the fewest processes first.

    base_step: the seconds of the base's step.
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
    kind = str(facts.group.scaling)
    table = _table(found, kind, facts)
    if not facts.timed:
        return Answer(_direction(found, kind), False, reasons=[UNTIMED], table=table)
    reasons = [
        f"{each.points[0].cell.parallel}, {each.points[0].cell.amp}: {text}"
        for each in found
        for text in _sentences(each, kind, facts)
    ]
    reasons += exclusions(facts)
    if lost := [cell for cell in facts.cells if facts.safe[cell] == "worse"]:
        reasons.append(f"Eliminated, as {facts.group.score} is lost: {facts.labels(lost)}.")
    several = [
        (point.times / (each.base_step or 1.0), point)
        for each in found
        for point in each.measured
        if point.processes > 1 and point.acceptable
    ]
    _, best = max(several, key=lambda each: each[0], default=(0.0, None))
    if best is None or best.speedup is None:
        return Answer(UNKNOWN, False, reasons=reasons, table=table)
    lead, named = _lead(best, best.speedup, kind, len({each.base.amp for each in found}) > 1)
    if named in facts.open_scores:
        undecided = replace(decide(facts), unscored=[named])
        more = recording.next_steps.surer(undecided)
        return Answer(leads.lead(undecided), False, reasons=reasons, table=table, surer=more)
    return Answer(lead, named is not None, named, reasons=reasons, table=table)


def _direction(found: Sequence[Series], kind: str) -> str:
    """Return what the times look like, in at most 14 words, where nothing is shown."""
    several = [
        (each.base_step / point.step * (point.ideal if kind == "weak" else 1.0), point)
        for each in found
        for point in each.points
        if point.processes > 1 and point.step
    ]
    if not several:
        return UNKNOWN
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
    processes = cell.processes or 1
    crowded = cores is not None and any(
        set(run.devices) == {"cpu"}
        and max(processes, run.threads or 0) > cores * max(len(run.on_hosts), 1)
        for run in facts.group.completed(cell)
    )
    speedup, ideal = facts.speedup(cell, base), processes / (base.processes or 1)
    step = facts.group.step_seconds(cell) or 0.0
    acceptable = facts.excluded(cell) is None and facts.safe[cell] != "worse"
    return Point(cell, base, processes, speedup, ideal, step, crowded, acceptable)


def _lead(best: Point, speed: Compared, kind: str, amps: bool) -> tuple[str, Cell | None]:
    """Whether more processes are faster, in at most 14 words; and the cell that is shown to be.

    amps: whether several precisions were swept.
    """
    what = f"{best.processes} processes ({best.cell.parallel}{f', {best.cell.amp}' * amps})"
    one = "one" if best.base.processes in (None, 1) else f"{best.base.processes}"
    if speed.verdict == "faster":
        unit = "as fast as" if kind == "strong" else "the examples a second of"
        return f"Use {what}: {number(speed.value, 2)} times {unit} {one}.", best.cell
    if speed.verdict == "tie":
        return f"Do not scale out: {what} are no faster than {one}.", best.base
    if speed.verdict == "slower":
        found = f"{speed.value:.2f} times as fast"
        return f"Do not scale out: {what} are {found} as {one}.", best.base
    return f"Not decided: {what} may be faster or slower than {one}.", None


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
    acceptable = [each for each in series.measured if each.acceptable]
    faster = [each for each in acceptable if each.speedup and each.speedup.verdict == "faster"]
    best = max(faster, key=lambda point: point.times, default=None)
    if best is None or best.speedup is None:
        return f"No acceptable number of its processes is shown to be faster than {base}."
    times = f"{best.times:.2f} times"
    does = (
        f"is {times} as fast as" if kind == "strong" else f"trains {times} the examples a second of"
    )
    ideal = "" if best.efficiency is None else f", {100 * best.efficiency:.0f} % of the ideal"
    sure = best.speedup.sure(facts.settings)
    return f"{facts.label(best.cell)} {does} {base} ({sure}){ideal}."


def _table(found: Sequence[Series], kind: str, facts: StudyFacts) -> AnswerTable:
    """Return how the series scale, a row for each number of processes."""
    each = "step has the same global" if kind == "strong" else "process has the same"
    about = f"{capitalized(kind)} scaling: every {each} batch."
    columns = ["configuration", "speedup", "efficiency", "ms a step"]
    rows = [_row(point, facts) for series in found for point in series.points]
    return AnswerTable("More processes", about, columns, rows)


def _row(point: Point, facts: StudyFacts) -> list[str]:
    times = MISSING
    if (speed := point.speedup) is not None:
        interval = f" ({speed.interval})" if speed.interval else ""
        times = f"{number(speed.value, 2)}{interval} {word(speed.verdict).text}"
    efficiency = MISSING if point.efficiency is None else f"{100 * point.efficiency:.0f} %"
    efficiency = "too few cores" if point.crowded else efficiency
    return [facts.label(point.cell), times, efficiency, three_digits(1e3 * point.step)]
