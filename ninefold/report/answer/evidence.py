"""The facts that a recommendation rests on: values by cell and seed, and how cells compare."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import fmean
from typing import Any

from ninefold.answer.facts import Facts
from ninefold.report.answer.tree import Compared
from ninefold.report.data.cell import PLAIN, Cell, plainness
from ninefold.report.data.cells import Group
from ninefold.report.data.curves import Point
from ninefold.report.data.runs import Run, finite
from ninefold.report.data.turns import StudyTurns, folder_name, waits_for_data, waits_for_host
from ninefold.report.stats.measures import SECONDS, Measure, of_score, to_target
from ninefold.report.stats.numerics import OTHER
from ninefold.score import SHARE, Score
from ninefold.stats.statistics import compare
from ninefold.stats.verdicts import OPEN, Comparison, Safety, Settings, Timings, Values
from ninefold.study_record import StudyRecord

FAILED_RUN, COPY, OTHER_NUMERICS = "failed run", "copy", "other numerics"
NEEDLESS = "GradScaler without float16"
UNSCALED, OTHER_LOSS = "float16 without a GradScaler", "loss of a part of the batch"
SHORT_WEIGHTS = "weights in bfloat16"
WRAPPER = 1e-4  # seconds that DataParallel itself may take of a step on one GPU: read, not measured
FORMATS = {"bfloat16": "bf16", "float16": "fp16"}


@dataclass(frozen=True, kw_only=True)
class Evidence(Facts):
    """One group of comparable runs, and what follows from them for its cells.

    Its times are seconds per epoch; of whole runs, which show no difference of time, only where
    there is one cell. Its turns are those of the whole study, over which it is decided which of
    them count.

    group: the runs. points: their evaluations. cells: those that any run names, simplest first.
    sweep: what their study recorded of itself.
    unfinished: whether the study has runs left to do.
    scored: whether scores were asked, even if no run has one yet.
    numerics: comparison of the first steps, None where none was recorded.
    failed: the cells with a run that ended badly, and how the first of them did.
    no_op_of: the cells that do the work of another one, as dp does none's on one device.
    redundant_scaler_of: the cells with a GradScaler but without float16, and for each the cell
        without a GradScaler: only gradients of float16 underflow where a larger loss would keep
        them.
    uncontrolled: the pairs that do the same work in another time, as DataParallel itself shows.
    scores: on the test set by cell and seed; in percent if they are shares.
    target: the score to time the way to, None where nothing gives one.
    """

    group: Group
    points: tuple[Point, ...]
    cells: list[Cell]
    sweep: StudyRecord
    unfinished: bool
    scored: bool
    numerics: Mapping[str, Any] | None
    failed: Mapping[Cell, str]
    no_op_of: Mapping[Cell, Cell]
    redundant_scaler_of: Mapping[Cell, Cell]
    uncontrolled: Sequence[tuple[Cell, Cell]]
    scores: Mapping[Cell, Mapping[int, float]]
    target: float | None

    def excluded(self, name: Cell) -> str | None:
        """Return why a cell is not recommended whatever its numbers are, or None."""
        if name in self.failed:
            return FAILED_RUN
        if self.no_op_of.get(name) in self.cells:
            return COPY
        plain = self.redundant_scaler_of.get(name)
        if plain is not None and plain not in self.failed:
            return NEEDLESS
        if name in self.other_numerics():
            return OTHER_NUMERICS
        if self.scored:  # then the scores judge
            return None
        if name in self.unscaled():
            return UNSCALED
        if name in self.in_short_weights():
            return SHORT_WEIGHTS
        return OTHER_LOSS if name in self.other_losses() else None

    def simplicity(self, name: Cell) -> object:
        return plainness(name)

    @property
    def open_scores(self) -> list[Cell]:
        """The cells whose score is open, without those that are not named whatever it is."""
        names = [cell for cell, verdict in self.safe.items() if verdict == OPEN]
        return [cell for cell in names if self.excluded(cell) is None]

    @property
    def scores_decided(self) -> bool:
        """Whether scores were compared with the baseline's, all conclusively."""
        if PLAIN not in self.scores or self.open_scores:
            return False
        return any(cell != PLAIN and verdict != OPEN for cell, verdict in self.safe.items())

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

    def speedup(self, cell: Cell, base: Cell = PLAIN) -> Compared | None:
        """Return the speedup of a configuration over another; None: not known."""
        if cell == base:
            return Compared(1.0, None, None, "baseline") if self.seconds.get(cell) else None
        found = self.comparison.speedup(base, cell)
        return None if found is None else Compared(*found, self.verdict(base, cell))

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

    def waits_for_data(self, cell: Cell) -> bool:
        """Whether a tenth or more of a cell's steps goes into loading and transferring batches."""
        return waits_for_data(self.group.completed(cell))

    def waits_for_host(self, cell: Cell) -> bool:
        """Whether a cell's GPUs wait for the host that queues their work."""
        completed = self.group.completed(cell)
        return waits_for_host([run for run in completed if run.timed is self.timed])

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
    failed = {run.cell: run.status for run in reversed(group.runs) if not run.ok}
    redundant = _redundant_scaler_of(group)
    scored = bool(group.training) or not group.timing or "score" in sweep.asked
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
        failed=failed,
        no_op_of=no_op_of,
        redundant_scaler_of=redundant,
        copies={**redundant, **no_op_of},
        measured_with={cell: of for cell, of in no_op_of.items() if cell not in failed},
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
    """The seconds per epoch of a group's cells at each look; of whole runs there is one look."""
    if not group.timing:
        return [Timings(SECONDS.values(group) if len(group.cells) < 2 else {})]
    names = {run.cell: folder_name(run) for run in group.timing if run.ok and run.counts}
    cells = [cell for cell in group.cells if names.get(cell) in turns.timings[-1].seconds]

    def of_cells(values: Values) -> Values:
        return {cell: values[names[cell]] for cell in cells if values.get(names[cell])}

    return [
        replace(
            look,
            seconds=of_cells(look.seconds),
            stretches=of_cells(look.stretches),
            waits=[cell for cell in cells if names[cell] in look.waits],
        )
        for look in turns.timings
    ]


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
