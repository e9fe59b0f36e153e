"""How a study's cells scale with their processes: measured, and as the cost model predicts."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from statistics import fmean

from ninefold.report.answer.evidence import Evidence
from ninefold.report.answer.pairs import Pairs
from ninefold.report.answer.scaling_tree import (
    LinkFigures,
    Missed,
    Predicted,
    Scaling,
    ScalingPoint,
    Series,
)
from ninefold.report.answer.scaling_words import sentences
from ninefold.report.data.cells import BASELINE
from ninefold.report.data.runs import PARALLEL, Run, finite, position
from ninefold.report.stats.costs import Costs, Model, efficiency, falls_below
from ninefold.report.stats.measures import SECONDS
from ninefold.report.stats.statistics import estimate
from ninefold.report.stats.verdicts import Estimate
from ninefold.result import ONE_PROCESS

BEYOND = (2, 4, 8)  # times the most processes that were measured: what is predicted
SHARES = (0.8, 0.5)  # efficiencies of which it is said from how many processes on they are missed


def scaling(evidence: Evidence) -> Scaling | None:
    """Return how the cells of a group scale, None where their processes were not swept."""
    if evidence.group.scaling is None:
        return None
    found: dict[tuple[str, str], list[str]] = {}
    for cell in evidence.cells:
        runs = _timed(evidence, cell)
        if runs and runs[0].parallel not in ONE_PROCESS:
            found.setdefault((str(runs[0].parallel), str(runs[0].amp)), []).append(cell)
    series = [
        _Series(evidence, parallel, amp, cells).described()
        for (parallel, amp), cells in sorted(
            found.items(), key=lambda item: position(item[0][0], PARALLEL)
        )
        if len(cells) > 1
    ]
    return Scaling(evidence.group.scaling, series) if series else None


class _Series:
    """The cells of one strategy and precision, by their processes.

    cells: fewest processes first. base: the cell of one process that they are compared with.
    """

    def __init__(self, evidence: Evidence, parallel: str, amp: str, cells: Sequence[str]) -> None:
        self._evidence, self._pairs = evidence, Pairs(evidence.comparison)
        self._parallel, self._amp, self._cells = parallel, amp, cells
        plain = f"{BASELINE[0]}-{amp}"
        self._base = plain if _timed(evidence, plain) else cells[0]
        self._weak = evidence.group.scaling == "weak"
        self._costs = {cell: costs for cell in cells if (costs := self._costs_of(cell))}

    def described(self) -> Series:
        points = [self._point(cell) for cell in self._cells]
        measured = [point for point in points if not point.oversubscribed]
        known = [self._costs[point.cell] for point in measured if point.cell in self._costs]
        last = known[-1] if known and known[-1].processes > 1 else None
        one = _step(self._evidence, self._base)
        predicted: list[Predicted] = []
        missed: list[Missed] = []
        link = None if last is None else self._link(last.processes)
        if last is not None and one is not None and self._of_base == 1:
            computes = {costs.processes: costs.compute for costs in known}
            model = Model(computes, last, self._weak)
            if model.known:
                predicted = [self._predicted(model, one, n * last.processes) for n in BEYOND]
                reached = {p.processes: p.efficiency for p in measured}[last.processes]
                missed = [
                    self._missed(share, computes, last, one)
                    for share in SHARES
                    if reached is None or reached >= share  # else it was measured to be missed
                ]
        found = Series(
            parallel=self._parallel,
            amp=self._amp,
            base=self._base,
            points=points,
            enough=self._enough(measured),
            bound=None if last is None else last.bound,
            link=link,
            predicted=predicted,
            missed=missed,
            said=[],
        )
        kind, settings = self._evidence.group.scaling or "", self._evidence.settings
        return replace(found, said=sentences(found, last, kind, settings.confidence))

    @property
    def _of_base(self) -> int:
        return _processes(self._evidence, self._base)

    def _point(self, cell: str) -> ScalingPoint:
        processes = _processes(self._evidence, cell)
        crowded = any(run.oversubscribed for run in _timed(self._evidence, cell))
        value, low, high = self._speedup(cell)
        ideal = processes / self._of_base
        efficient = not crowded
        costs = self._costs.get(cell)
        return ScalingPoint(
            processes=processes,
            cell=cell,
            oversubscribed=crowded,
            verdict=None if cell == self._base else self._pairs.verdict(self._base, cell),
            speedup=value,
            speedup_low=low,
            speedup_high=high,
            efficiency=value / ideal if efficient and value is not None else None,
            efficiency_low=low / ideal if efficient and low is not None else None,
            efficiency_high=high / ideal if efficient and high is not None else None,
            step_seconds=_step(self._evidence, cell),
            compute_seconds=costs.compute if costs else None,
            communication_seconds=costs.communication if costs else None,
            least_seconds=costs.least if costs else None,
            most_seconds=costs.most if costs else None,
        )

    def _speedup(self, cell: str) -> tuple[float | None, float | None, float | None]:
        """How many times as fast as the base a cell is, and its interval.

        That of their pair; or, of a cell on the hosts of the base and more, which has no verdict,
        of its seeds alone.
        """
        if cell == self._base:
            return 1.0, None, None
        if (ratio := self._pairs.ratio(self._base, cell)) is not None:
            low, high = (1 / end if end else None for end in (ratio[2], ratio[1]))
            return 1 / ratio[0], low, high
        times, hosts = self._evidence.values(SECONDS), self._evidence.hosts(SECONDS)
        one, own = times.get(self._base, {}), times.get(cell, {})
        logs = {
            key: math.log(one[key] / own[key])
            for key in one.keys() & own.keys()
            if one[key] > 0 < own[key]
            if set(hosts[self._base][key]) < set(hosts[cell][key])
        }
        found = estimate(logs)
        mean, low, high = (
            None if end is None else math.exp(end) for end in (found.mean, found.low, found.high)
        )
        return mean, low, high

    def _costs_of(self, cell: str) -> Costs | None:
        """What a step of a cell costs; None where a part of it was not measured."""
        processes = _processes(self._evidence, cell)
        compute = self._compute(processes)
        if not compute or compute < 0:
            return None
        if processes == 1:
            return Costs(1, compute, 0, 0, 0.0, math.inf)
        runs, link = _timed(self._evidence, cell), self._link(processes)
        sent = [n for run in runs if (n := run.traffic_bytes) is not None and n >= 0]
        messages = [n for run in runs if (n := run.messages) is not None and n >= 0]
        if link is None or not sent or not messages:
            return None
        alpha, speed = link.alpha_seconds.mean, link.bytes_per_second.mean
        if alpha is None or alpha < 0 or not speed or speed < 0:
            return None
        return Costs(processes, compute, fmean(messages), fmean(sent), alpha, speed)

    def _compute(self, processes: int) -> float | None:
        """C: seconds of a step without communication, with so many processes at work.

        It is the same for all strategies: theirs is taken for which it is the least.
        """
        by_strategy: dict[str | None, list[float]] = {}
        for run in self._of_precision(processes):
            if (seconds := finite(run.compute_seconds)) is not None:
                by_strategy.setdefault(run.parallel, []).append(seconds)
        return min(map(fmean, by_strategy.values()), default=None)

    def _link(self, processes: int) -> LinkFigures | None:
        """The link between so many processes, over all runs that timed it."""
        runs = [run for run in self._of_precision(processes) if run.link]
        alphas, speeds = (
            [value for run in runs if (value := finite(run.link.get(name))) is not None]
            for name in ("alpha_seconds", "bytes_per_second")
        )
        if not alphas or not speeds:
            return None
        return LinkFigures(processes, _mean(alphas), _mean(speeds))

    def _of_precision(self, processes: int) -> list[Run]:
        return [
            run
            for run in self._evidence.group.runs
            if run.ok and run.amp == self._amp and run.processes == processes
        ]

    def _predicted(self, model: Model, one: float, processes: int) -> Predicted:
        costs = model.costs(processes)
        low, high = (
            efficiency(one, seconds, processes, self._weak) for seconds in (costs.most, costs.least)
        )
        return Predicted(
            processes, costs.least, costs.most, low * processes, high * processes, low, high
        )

    def _missed(self, share: float, computes: dict[int, float], last: Costs, one: float) -> Missed:
        """From how many processes on an efficiency is missed, at the ends of band and link."""
        link = self._link(last.processes)
        assert link is not None
        found = []
        for slowest in (True, False):
            alpha, speed = link.alpha_seconds, link.bytes_per_second
            ends = (alpha.high, speed.low) if slowest else (alpha.low, speed.high)
            end = replace(
                last,
                alpha=last.alpha if ends[0] is None else max(0.0, ends[0]),
                speed=ends[1] if ends[1] and ends[1] > 0 else last.speed,
            )
            model = Model(computes, end, self._weak)
            first = last.processes + 1
            found.append(falls_below(share, model, one, self._weak, slowest, first))
        return Missed(share, found[0], found[1])

    def _enough(self, points: Sequence[ScalingPoint]) -> int | None:
        """The processes from which on each measured larger number is shown not to be faster."""
        for number, point in enumerate(points[:-1]):
            others = [other.cell for other in points[number + 1 :]]
            verdicts = {self._pairs.verdict(point.cell, other) for other in others}
            if verdicts <= {"slower", "tie"}:
                return point.processes
        return None


def _timed(evidence: Evidence, cell: str) -> list[Run]:
    """The runs of a cell that its time is taken from."""
    return [run for run in SECONDS.source(evidence.group) if run.ok and run.cell == cell]


def _processes(evidence: Evidence, cell: str) -> int:
    return max([1, *(run.processes or 1 for run in evidence.runs(cell))])


def _step(evidence: Evidence, cell: str) -> float | None:
    """Seconds of a step of a cell, the mean over its runs."""
    steps = [
        run.train_seconds / run.steps
        for run in _timed(evidence, cell)
        if run.train_seconds and run.steps and run.train_seconds > 0 < run.steps
    ]
    return fmean(steps) if steps else None


def _mean(values: Sequence[float]) -> Estimate:
    return estimate(dict(enumerate(values)))
