"""The table of strategies by precisions, one for each measure, as the page shows it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from ninefold.report.answer.tree import Figures, Group, LargestBatch, MeasureInfo
from ninefold.report.data.cell import PLAIN, Cell
from ninefold.report.numbers import (
    between,
    counted,
    decimals_of,
    decimals_of_score,
    difference,
    number,
    times,
    typeset,
    with_unit,
)
from ninefold.report.render.strips import Strip, scale
from ninefold.report.stats.measures import OF_TIME, SCORE_KEY, TO_TARGET, in_unit
from ninefold.stats.verdicts import OTHER_HOSTS

# The darkest and the lightest tint are at least this far apart, as a share of the best value, or in
# points of a score: in a table of nearly equal values the tints are nearly equal.
_LEAST_RANGE, _LEAST_POINTS = 0.1, 1.0


@dataclass(frozen=True)
class Field:
    """One field of the table, as text.

    place: its row and column.
    words: what stands there if there is no value.
    why: what limits the value.
    extreme: the tag of the best field.
    tint: from 0 to 1, the best.
    """

    place: str
    marks: list[int]
    words: str = ""
    why: str = ""
    mean: str = ""
    sd: str = ""
    relative: str = ""
    interval: str = ""
    seeds: str = ""
    extreme: str = ""
    tint: float = 0.0
    strip: Strip | None = None


@dataclass(frozen=True)
class Panel:
    """The table of one measure.

    why_not: why there is none.
    best: the tag of the best field, `tagged` whether there is one.
    span: the range of the strips' scale.
    rows: strategies with their fields, by precision.
    """

    key: str
    title: str
    unit: str
    about: str
    why_not: str | None
    best: str
    span: str
    tagged: bool
    rows: list[tuple[str, list[Field]]]


def panels(group: Group) -> list[Panel]:
    """Return the tables of a group, one for each measure."""
    return [_Measured(group, measure).panel() for measure in group.measures]


class _Measured:
    """One measure of a group, with what its fields share: unit, decimals, scale and tints."""

    def __init__(self, group: Group, measure: MeasureInfo) -> None:
        self.group, self.measure = group, measure
        self.cells = {(cell.parallel, cell.amp): cell for cell in group.cells}
        self.found: dict[Cell, Figures] = {}
        self.means: dict[Cell, float] = {}
        for cell in group.cells:
            figures = cell.measures.get(measure.key)
            if figures is not None and figures.mean is not None:
                self.found[cell.cell] = figures
                self.means[cell.cell] = figures.mean
        of_time = measure.key in OF_TIME
        self.timing_rounds = group.timing_rounds if of_time else None
        self.apart = group.apart if of_time or measure.key == TO_TARGET else set()
        self.unit, self.factor = _unit(measure.unit, list(self.means.values()))
        shown = [mean * self.factor for mean in self.means.values()]
        self.scores = measure.key == SCORE_KEY
        self.decimals = decimals_of(self.unit, shown)
        if self.scores:
            sds = (figures.sd for figures in self.found.values())
            self.decimals = decimals_of_score(self.unit, shown, sds)
        ends = [
            end
            for name, figures in self.found.items()
            for end in (*figures.values.values(), figures.low, figures.high, self.means[name])
        ]
        self.ends = [self.possible(end) for end in ends if end is not None]
        self.place = scale(self.ends)
        self.tints = _tints(self.means, measure)
        self.best = "lowest" if measure.better == "less" else "highest"
        top = max(self.tints.values(), default=0.0)
        ahead = {self.show(mean) for name, mean in self.means.items() if self.tints[name] == top}
        self.extremes = [name for name, mean in self.means.items() if self.show(mean) in ahead]

    def possible(self, value: float) -> float:
        """Limit the end of an interval: no share is above 100 %, and no other measure than a score
        is negative."""
        if self.scores and self.unit != "%":
            return value
        return max(0.0, min(value, 100.0) if self.scores else value)

    def show(self, value: float | None) -> str:
        """Return a value in the unit of the table."""
        return typeset(number(None if value is None else value * self.factor, self.decimals))

    def panel(self) -> Panel:
        measure, group = self.measure, self.group
        span = ""
        if any(figures.low is not None for figures in self.found.values()):
            span = f"{self.show(min(self.ends))} to {self.show(max(self.ends))} {self.unit}"
        return Panel(
            key=measure.key,
            title=measure.title.removesuffix(in_unit("", measure.unit) if self.scores else ""),
            unit=self.unit,
            about=measure.about.replace("`", ""),
            why_not=None if measure.available else measure.why_not or "It was not measured.",
            best=self.best,
            span=span,
            tagged=len(self.extremes) == 1 and self.compared,
            rows=[
                (parallel, [self.field(parallel, amp) for amp in group.amps])
                for parallel in group.parallels
            ],
        )

    def field(self, parallel: str, amp: str) -> Field:
        cell, place = self.cells.get((parallel, amp)), f"{parallel}-{amp}"
        if cell is None:
            planned = place in self.group.planned
            return Field(place, [], words="not run" if planned else "not in this study")
        name, figures = cell.cell, self.found.get(cell.cell)
        if figures is None:
            why = _why(cell.measures.get(self.measure.key))
            words = why or cell.status or ("not known" if cell.seeds else "not run")
            return Field(place, cell.marks, words=words)
        low = None if figures.low is None else self.possible(figures.low)
        high = None if figures.high is None else self.possible(figures.high)
        interval = between(low, high, self.show)
        return Field(
            place,
            cell.marks,
            why=_why(figures),
            mean=self.show(figures.mean),
            sd="" if figures.sd is None else self.show(figures.sd),
            relative=self.relative(name, figures),
            interval="" if low is None else interval,
            seeds=self.seeds(figures),
            extreme=self.best if self.extremes == [name] and self.compared else "",
            tint=0.0 if self.apart else self.tints[name],
            strip=self.strip(name, figures, low, high) if len(figures.values) > 1 else None,
        )

    @property
    def compared(self) -> bool:
        """Whether one value can be called the best."""
        return len(self.found) > 1 and not self.apart

    def relative(self, name: Cell, figures: Figures) -> str:
        if name == PLAIN:
            return "baseline"
        if figures.relative is None:
            return OTHER_HOSTS if frozenset((PLAIN, name)) in self.apart else ""
        if self.scores:
            mark = "pt" if self.unit == "%" else self.unit
            return with_unit(typeset(difference(figures.relative, self.unit)), mark)
        return typeset(times(figures.relative))

    def seeds(self, figures: Figures) -> str:
        """Return how many seeds or timing rounds the mean is of, where some have no value."""
        if rounds := self.timing_rounds:
            return "" if figures.n == rounds else f"{figures.n} of {counted(rounds, 'round')}"
        if figures.n >= figures.tried:
            return ""
        return f"{figures.n} of {counted(figures.tried, 'seed')}"

    def strip(self, name: Cell, figures: Figures, low: float | None, high: float | None) -> Strip:
        seeds = ", ".join(f"{seed}: {self.show(value)}" for seed, value in figures.values.items())
        return Strip(
            self.place(figures.mean),
            None if low is None else self.place(low),
            None if high is None else self.place(high),
            dots=tuple(self.place(value) for value in figures.values.values()),
            rule=self.place(self.means[PLAIN]) if PLAIN in self.means else None,
            about=f"{name}: {self.show(figures.mean)} {self.unit}; 95 % interval "
            f"{between(low, high, self.show)}; by {'round' if self.timing_rounds else 'seed'} "
            f"{seeds}",
        )


def _why(figures: Figures | None) -> str:
    return (figures.why or "") if isinstance(figures, LargestBatch) else ""


def _tints(means: Mapping[Cell, float], measure: MeasureInfo) -> dict[Cell, float]:
    """Return how strongly each cell is tinted: 1 the best, 0 the worst."""
    if not means:
        return {}
    ends: tuple[Callable[..., float], Callable[..., float]] = (min, max)
    best, worst = ends if measure.better == "less" else ends[::-1]
    top = best(means.values())
    points = measure.key == SCORE_KEY and measure.unit == "%"
    least = _LEAST_POINTS if points else _LEAST_RANGE * abs(top)
    width = max(abs(worst(means.values()) - top), least) or 1.0
    return {name: round(1 - abs(mean - top) / width, 3) for name, mean in means.items()}


def _unit(unit: str, means: Sequence[float]) -> tuple[str, float]:
    """Return the unit to show in, and the factor to it: bytes are shown as MiB or GiB."""
    if unit != "bytes":
        return unit, 1.0
    large = max(means, default=0.0) >= 10 * 2**30
    return ("GiB", 2.0**-30) if large else ("MiB", 2.0**-20)
