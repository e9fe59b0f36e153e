"""The facts that a recommendation rests on: values by cell and seed, and how cells compare."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import fmean
from typing import Any

from ninefold.report.answer.tree import Compared
from ninefold.report.data.cell import PLAIN, Cell
from ninefold.report.data.cells import Group
from ninefold.report.data.curves import Point
from ninefold.report.data.runs import Run, finite
from ninefold.report.data.turns import StudyTurns
from ninefold.report.stats.measures import SECONDS, Measure, of_score, to_target
from ninefold.report.stats.numerics import OTHER
from ninefold.result import BEHIND
from ninefold.score import PHASES, SHARE, Score
from ninefold.stats.best import Standing, standing
from ninefold.stats.statistics import compare
from ninefold.stats.verdicts import (
    OPEN,
    Comparison,
    Name,
    Safety,
    Settings,
    Timings,
)
from ninefold.study_record import StudyRecord
from ninefold.tournament.taken import Counted
from ninefold.types import LEAST_ROUNDS

WRAPPER = 1e-4  # seconds that DataParallel itself may take of a step on one GPU: read, not measured
FORMATS = {"bfloat16": "bf16", "float16": "fp16"}
WAITING = 10.0  # percent of a step in data and transfer from which on a cell waits for them


@dataclass(frozen=True)
class Evidence:
    """One group of comparable runs, and what follows from them for its cells.

    group: the runs. points: their evaluations. cells: those that any run names, simplest first.
    sweep: what their study recorded of itself.
    settings: thresholds of the statistics.
    unfinished: whether the study has runs left to do.
    scored: whether scores were asked, even if no run has one yet.
    numerics: comparison of the first steps, None where none was recorded.
    failed: the cells with a run that ended badly, and how the first of them did.
    no_op_of: the cells that do the work of another one, as dp does none's on one device.
    redundant_scaler_of: the cells with a GradScaler but without float16, and for each the cell
        without a GradScaler: only gradients of float16 underflow where a larger loss would keep
        them.
    uncontrolled: the pairs that do the same work in another time, as DataParallel itself shows.
    timings: seconds per epoch at each look; of whole runs, which show no difference of time, only
        where there is one cell.
    turns: those of the whole study, over which it is decided which of them count.
    scores: on the test set by cell and seed; in percent if they are shares.
    comparison: the verdicts on every pair of cells.
    safe: the verdict on each cell's score: safe, worse, open; safe if not scored.
    target: the score to time the way to, None where nothing gives one.
    """

    group: Group
    points: tuple[Point, ...]
    cells: list[Cell]
    sweep: StudyRecord
    settings: Settings
    unfinished: bool
    scored: bool
    numerics: Mapping[str, Any] | None
    failed: Mapping[Cell, str]
    no_op_of: Mapping[Cell, Cell]
    redundant_scaler_of: Mapping[Cell, Cell]
    uncontrolled: Sequence[tuple[Cell, Cell]]
    timings: Sequence[Timings]
    turns: Counted
    scores: Mapping[Cell, Mapping[int, float]]
    comparison: Comparison
    safe: Mapping[Cell, str]
    target: float | None

    @property
    def seconds(self) -> Mapping[Cell, Mapping[int, float]]:
        """Seconds per epoch, by cell and timing round."""
        return self.timings[-1].seconds

    @property
    def timed(self) -> bool:
        """Return whether its times are of timing rounds."""
        return bool(self.group.timing)

    @property
    def asks_time(self) -> bool:
        """Whether it can tell which cell is the fastest: turns do, and of one there is no doubt."""
        return self.timed or len(self.cells) < 2

    @property
    def unit(self) -> str:
        """Return what there is one value of time for: a seed or a round."""
        return "round" if self.timed else "seed"

    @property
    def few(self) -> bool:
        """Return whether its times are of fewer than LEAST_ROUNDS rounds."""
        return max(map(len, self.seconds.values()), default=0) < LEAST_ROUNDS

    @property
    def to_target(self) -> Measure | None:
        """The measure of the seconds to `target`; None without one."""
        if self.target is None:
            return None
        return to_target(self.target, self.points, self.group.scoring)

    @property
    def left_out(self) -> set[Cell]:
        """Return the cells that are ruled out regardless of their times and scores."""
        return {*self.failed, *self.no_op_of, *self.redundant_scaler_of, *self.other_numerics()}

    def label(self, cell: Cell) -> str:
        """Return what a configuration is called, with its number format: `ddp, autocast (bf16)`."""
        return f"{cell.strategy}, {self.precision(cell)}"

    def precision(self, cell: Cell) -> str:
        """Return what its precision is called, with its number format: `autocast (bf16)`."""
        formats = {FORMATS.get(run.dtype or "") for run in self.group.completed(cell)}
        formats -= {None, cell.amp}
        return cell.amp + (f" ({' or '.join(sorted(filter(None, formats)))})" if formats else "")

    def labels(self, cells: Iterable[Cell]) -> str:
        """Return several labels; as each has a comma of its own, a semicolon is between them."""
        return "; ".join(map(self.label, cells))

    def verdict(self, first: Name, second: Name) -> str:
        """Return how the time of `second` compares with that of `first`: see `verdicts.Pair`."""
        return self.comparison.verdict(first, second)

    def speedup(self, cell: Cell, base: Cell = PLAIN) -> Compared | None:
        """Return the speedup of a configuration over another; None: not known."""
        if cell == base:
            return Compared(1.0, None, None, "baseline") if self.seconds.get(cell) else None
        found = self.comparison.speedup(base, cell)
        return None if found is None else Compared(*found, self.verdict(base, cell))

    def standing(self, candidates: Sequence[Cell], by: Sequence[Cell] | None = None) -> Standing:
        """Return how cells stand, by their seconds per epoch, against the fastest of them.

        by: those of which one has to be faster than what is out; None: all.
        """
        names, floor = list(self.seconds), self.comparison.floor
        return standing(names, self.comparison.looks, candidates, floor, by)

    def other_numerics(self) -> dict[Cell, str]:
        """Return the cells whose first steps do not compute what the baseline's do, and why."""
        return {
            row["cell"]: str(row.get("sentence") or "")
            for row in self._rows_of_numerics()
            if row.get("verdict") == OTHER and not row.get("by_design")
        }

    def in_short_weights(self) -> list[Cell]:
        """Return the cells with weights in bfloat16, which small updates do not change."""
        return self._of_runs(lambda run: run.weights == "bfloat16")

    def unscaled(self) -> list[Cell]:
        """Return the cells in float16 without a GradScaler, whose small gradients may underflow.

        Without those whose first steps were compared with the baseline's and are within rounding.
        """
        kept = {row["cell"] for row in self._rows_of_numerics() if row.get("verdict") != OTHER}
        unscaled = self._of_runs(lambda run: run.dtype == "float16" and not run.grad_scaler)
        return [cell for cell in unscaled if cell not in kept]

    def other_losses(self) -> list[Cell]:
        """Return the cells whose replicas take a part of a loss that is no mean of its parts."""
        return self._of_runs(lambda run: run.mean_loss is False)

    def batch_norm(self) -> list[Cell]:
        """Return the cells whose batch norm differs by design: only their score can judge."""
        return [row["cell"] for row in self._rows_of_numerics() if row.get("by_design")]

    def _of_runs(self, holds: Callable[[Run], bool]) -> list[Cell]:
        """The cells that it holds for a completed run of."""
        return [cell for cell in self.cells if any(map(holds, self.group.completed(cell)))]

    def _rows_of_numerics(self) -> Sequence[Mapping[str, Any]]:
        return (self.numerics or {}).get("rows") or []

    def chunked(self) -> list[Cell]:
        """Return the cells that compute parts of a batch one after the other."""
        return self._of_runs(lambda run: (run.chunks or 1) > 1)

    def phases(self, cell: Cell) -> dict[str, float] | None:
        """Return the percentage of each phase in the sampled steps, the mean over its runs."""
        return _phases(self.group, cell)

    def waits_for_data(self, cell: Cell) -> bool:
        """Whether a tenth or more of a cell's steps goes into loading and transferring batches."""
        return _waits_for_data(self.group, cell)

    def waits_for_host(self, cell: Cell) -> bool:
        """Whether a cell's GPUs have done nearly all of a step as soon as the host has queued it.

        A GPU that is the limit is behind then: the host runs ahead of it. Cells that wait for their
        data are others.
        """
        return _waits_for_host(self.group, cell)

    def safety(self, cell: Cell) -> Safety | None:
        """Return the test of a cell's score against the baseline's."""
        return next((each for each in self.comparison.safety if each.cell == cell), None)


def gather_evidence(
    group: Group,
    points: Sequence[Point],
    sweep: StudyRecord,
    turns: StudyTurns,
    numerics: Mapping[str, Any] | None = None,
    unfinished: bool = False,
) -> Evidence:
    """Return the evidence of a group; the margins are in its study's record."""
    folders, cells = {run.folder for run in group.runs}, group.cells
    settings, target = _settings(sweep, group.scoring)
    no_op_of = _no_op_of(group)
    same_work = [(base, cell) for cell, base in no_op_of.items() if group.completed(base)]
    uncontrolled = [pair for pair in same_work if _wrapper_shows(group, *pair, settings.same)]
    timings = _timings(group, turns)
    scores = of_score(group.scoring).values(group)
    controls = [pair for pair in same_work if pair not in uncontrolled]
    comparison = compare(timings, scores, settings, controls, same_work)
    scored = bool(group.training) or not group.timing or "accuracy" in sweep.asked
    plain = list(scores.get(PLAIN, {}).values())
    if target is None and plain:
        target = fmean(plain) - group.scoring.sign * settings.margin
    return Evidence(
        group=group,
        points=tuple(point for point in points if point.folder in folders),
        cells=cells,
        sweep=sweep,
        settings=settings,
        unfinished=unfinished,
        scored=scored,
        numerics=numerics,
        failed={run.cell: run.status for run in reversed(group.runs) if not run.ok},
        no_op_of=no_op_of,
        redundant_scaler_of=_redundant_scaler_of(group),
        uncontrolled=uncontrolled,
        timings=timings,
        turns=turns.now,
        scores=scores,
        comparison=comparison,
        safe=_safe(group, comparison) if scored else dict.fromkeys(cells, "safe"),
        target=target,
    )


def _no_op_of(group: Group) -> dict[Cell, Cell]:
    return {
        cell: Cell(PLAIN.parallel, cell.amp)
        for cell in group.cells
        if cell.parallel != PLAIN.parallel
        and {run.no_op for run in group.completed(cell)} == {True}
    }


def _redundant_scaler_of(group: Group) -> dict[Cell, Cell]:
    does = {
        cell: {(cell.strategy, run.dtype, run.grad_scaler) for run in group.completed(cell)}
        for cell in group.cells
    }
    return {
        cell: other
        for cell, own in does.items()
        for strategy, dtype, scaled in own
        if len(own) == 1 and scaled and dtype not in (None, "float16")
        for other, its in does.items()
        if its == {(strategy, dtype, False)}
    }


def _wrapper_shows(group: Group, base: Cell, cell: Cell, same: float) -> bool:
    """Return whether dp's wrapper can be as much of a step as counts as equal: it is no noise then.

    On a GPU it walks through all parameters and scatters the batch in each step.
    """
    on_gpu = any(set(run.devices) - {"cpu"} for run in group.completed(cell))
    step = step_seconds(group, base)
    return on_gpu and step is not None and same * step < WRAPPER


def step_seconds(group: Group, cell: Cell) -> float | None:
    """Return the mean seconds of a step of a cell, None if unknown."""
    steps = [
        run.step_seconds
        for run in group.completed(cell)
        if run.timed is bool(group.timing) and run.step_seconds
    ]
    return fmean(steps) if steps else None


def _timings(group: Group, turns: StudyTurns) -> list[Timings]:
    """The seconds per epoch of a group's cells at each look; of whole runs there is one look.

    Cells that wait for the host are compared by their long stretches, where each round has them.
    """
    if not group.timing:
        return [Timings(SECONDS.values(group) if len(group.cells) < 2 else {})]
    found = []
    for look in turns.looks:
        runs = tuple(look.runs[run.folder] for run in group.runs if run.folder in look.runs)
        then = replace(group, runs=runs)
        stretches = _STRETCHES.values(then)
        enough = [cell for cell, of in stretches.items() if len(of) >= LEAST_ROUNDS]
        waits = [cell for cell in enough if _waits_for_host(then, cell)]
        found.append(Timings(SECONDS.values(then), stretches, waits, look.shares))
    return found


def _stretch_seconds(run: Run) -> float | None:
    """Seconds per epoch, by a long stretch alone after the turns."""
    if not (run.stretch_seconds and run.steps and run.epochs):
        return None
    return run.stretch_seconds * run.steps / run.epochs


_STRETCHES = replace(SECONDS, value=_stretch_seconds)


def _phases(group: Group, cell: Cell) -> dict[str, float] | None:
    shares: dict[str, list[float]] = {}
    for run in group.completed(cell):
        seconds = run.phase_seconds
        whole = sum(seconds.values())
        for name in PHASES:
            if whole and name in seconds:
                shares.setdefault(name, []).append(100 * seconds[name] / whole)
    return {name: fmean(each) for name, each in shares.items()} or None


def _waits_for_data(group: Group, cell: Cell) -> bool:
    phases = _phases(group, cell) or {}
    return phases.get("data", 0.0) + phases.get("transfer", 0.0) >= WAITING


def _waits_for_host(group: Group, cell: Cell) -> bool:
    runs = [run for run in group.completed(cell) if run.timed is bool(group.timing)]
    shares = [run.gpu_behind for run in runs if run.gpu_behind is not None]
    return bool(shares) and fmean(shares) < BEHIND and not _waits_for_data(group, cell)


def _safe(group: Group, comparison: Comparison) -> dict[Cell, str]:
    found = dict.fromkeys(group.cells, OPEN)
    found |= {safety.cell: str(safety.verdict) for safety in comparison.safety}
    return {**found, PLAIN: "safe"} if group.completed(PLAIN) else found


def _settings(sweep: StudyRecord, score: Score) -> tuple[Settings, float | None]:
    """Return the settings of a sweep, with defaults for those that cannot be read, and its target.

    Without a margin of the study, it is that of the task's score.
    """
    said, share = sweep.settings.get("report", {}), score.unit == SHARE

    def between(name: str, low: float, high: float) -> float | None:
        value = finite(said.get(name))
        return value if value is not None and low < value < high else None

    ours = Settings()
    of_task = score.margin or (ours.margin if share else 0.0)
    settings = Settings(
        margin=between("margin", 0, 100 if share else math.inf) or of_task,
        same=between("same", 0, 1) or ours.same,
        looks=sweep.looks if 0 < sweep.looks < 10**6 else ours.looks,
        baseline=PLAIN,
        better=score.better,
    )
    target = between("target", *((0, 1) if share else (-math.inf, math.inf)))
    return settings, None if target is None else score.scale * target
