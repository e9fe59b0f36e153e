"""The facts that a recommendation rests on: values by cell and seed, and how cells compare."""

from __future__ import annotations

import functools
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import fmean
from typing import Any

from ninefold.report.answer.pairs import Pairs
from ninefold.report.answer.tree import Speed, Speedup
from ninefold.report.data.cell import PLAIN, Cell
from ninefold.report.data.cells import Group
from ninefold.report.data.curves import Point
from ninefold.report.data.runs import Run, finite
from ninefold.report.stats.measures import (
    SECONDS,
    THROUGHPUT,
    Measure,
    of_score,
    to_target,
)
from ninefold.report.stats.numerics import OTHER
from ninefold.result import TIMING_LOOKS
from ninefold.score import PHASES, SHARE, Score
from ninefold.stats.best import Standing
from ninefold.stats.statistics import compare, stand
from ninefold.stats.verdicts import OPEN, Comparison, Safety, Settings
from ninefold.study_record import StudyRecord

WRAPPER = 1e-4  # seconds that DataParallel itself may take of a step on one GPU: read, not measured
FORMATS = {"bfloat16": "bf16", "float16": "fp16"}
WAITING = 10.0  # percent of a step in data and transfer from which on a cell waits for them


@dataclass(frozen=True)
class Evidence:
    """One group of comparable runs, and what follows from them for its cells.

    group: the runs. points: their evaluations. asked: what the study was to tell, `study.ask`.
    settings: thresholds of the statistics.
    given_target: score to time the way to, in percent if a share; None: derived from the baseline.
    unmargined: whether neither the study nor the task says what may be lost of the score.
    numerics: comparison of the first steps, None where none was recorded.
    unfinished: whether the study has runs left to do.
    """

    group: Group
    points: tuple[Point, ...]
    settings: Settings
    given_target: float | None
    numerics: Mapping[str, Any] | None
    unfinished: bool = False
    asked: tuple[str, ...] = ()
    unmargined: bool = False

    @functools.cached_property
    def cells(self) -> list[Cell]:
        """The cells that any run names, simplest first."""
        return self.group.cells

    @property
    def timed(self) -> bool:
        """Whether its times are of timing rounds."""
        return bool(self.group.timing)

    @property
    def scored(self) -> bool:
        """Whether scores were asked, even if no run has one yet."""
        return bool(self.group.training) or not self.timed or "accuracy" in self.asked

    @property
    def asks_time(self) -> bool:
        """Whether the study asked which configuration is the fastest; of one there is no doubt."""
        return "time" in self.asked or len(self.cells) < 2

    @property
    def unit(self) -> str:
        """What there is one value of time for: a seed or a timing round."""
        return "timing round" if self.timed or not self.group.training else "seed"

    def label(self, cell: Cell) -> str:
        """Return what a configuration is called, with its number format: `ddp, autocast (bf16)`."""
        formats = {FORMATS.get(run.dtype or "") for run in self._ok(cell)} - {None, cell.amp}
        shown = f" ({' or '.join(sorted(filter(None, formats)))})" if formats else ""
        return f"{cell.strategy}, {cell.amp}{shown}"

    def labels(self, cells: Iterable[Cell]) -> str:
        """Return several labels; as each has a comma of its own, a semicolon is between them."""
        return "; ".join(map(self.label, cells))

    def speed(self, cell: Cell) -> Speed | None:
        """Return how many times as fast as the baseline a configuration is; None: not known."""
        if cell == PLAIN:
            return Speed(1.0, None, None, "baseline") if self.values(SECONDS).get(cell) else None
        ratio, verdict = self.pairs.ratio(PLAIN, cell), self.pairs.verdict(PLAIN, cell)
        if ratio is None or not ratio[0]:
            return None
        value, low, high = ratio
        return Speed(1 / value, 1 / high if high else None, 1 / low if low else None, verdict)

    def standing(self, candidates: Sequence[Cell], by: Sequence[Cell] | None = None) -> Standing:
        """Return how cells stand, by their seconds per epoch, against the fastest of them.

        by: those of which one has to be faster than what is out; None: all.
        """
        hosts, floor = self.hosts(SECONDS), self.comparison.floor
        return stand(self.values(SECONDS), candidates, self.settings, floor, hosts, by)

    def runs(self, cell: Cell) -> list[Run]:
        """Return the runs of a cell, those that ended badly too."""
        return self.group.of(cell)

    def sources(self, measure: Measure) -> dict[Cell, dict[int | None, list[Run]]]:
        """Return the runs that a measure is taken from, by cell and by what they pair by.

        Runs pair by seed, timing runs by round.
        """
        found: dict[Cell, dict[int | None, list[Run]]] = {cell: {} for cell in self.cells}
        for run in measure.source(self.group):
            found[run.cell].setdefault(run.place, []).append(run)
        return found

    def values(self, measure: Measure) -> dict[Cell, dict[int, float]]:
        """Return what a measure gives by cell and pair, without the cells that have nothing.

        Of several runs it is the mean, as of those of a seed.
        """
        found: dict[Cell, dict[int, float]] = {}
        for cell, pairs in self.sources(measure).items():
            for key, runs in pairs.items():
                values = [finite(measure.value(run)) for run in runs if run.ok]
                known = [value for value in values if value is not None]
                if known and key is not None:
                    found.setdefault(cell, {})[key] = fmean(known)
        return found

    def hosts(self, measure: Measure) -> dict[Cell, dict[int, tuple[int, ...]]]:
        """Return the numbers of the hosts that each of `values(measure)` was measured on."""
        return {
            cell: {
                key: tuple(sorted({host for run in runs if run.ok for host in run.on_hosts}))
                for key, runs in pairs.items()
                if key is not None and any(run.ok for run in runs)
            }
            for cell, pairs in self.sources(measure).items()
        }

    def relative(self, measure: Measure) -> dict[Cell, float | None]:
        """Return what a measure gives by cell, relative to the baseline's in the same pairs."""
        values, hosts = self.values(measure), self.hosts(measure)
        base, found = values.get(PLAIN, {}), {}
        for cell, own in values.items():
            pairs = [
                measure.paired(own[key], base[key])
                for key in own
                if key in base
                and (not measure.depends_on_hosts or hosts[cell][key] == hosts[PLAIN][key])
            ]
            found[cell] = finite(measure.middle(pairs)) if pairs else None
        return found

    @functools.cached_property
    def accuracy(self) -> dict[Cell, dict[int, float]]:
        """The task's score on the test set by cell and seed; in percent if it is a share."""
        return self.values(of_score(self.group.scoring))

    @functools.cached_property
    def comparison(self) -> Comparison:
        """Seconds per epoch and score, every pair of cells."""
        return compare(
            self.values(SECONDS),
            self.accuracy,
            self.settings,
            self.controls,
            self.alike,
            self.hosts(SECONDS),
            self.stretches,
        )

    @functools.cached_property
    def pairs(self) -> Pairs:
        """The verdicts on seconds per epoch of two cells, in either order."""
        return Pairs(self.comparison)

    @functools.cached_property
    def stretches(self) -> dict[Cell, dict[int, float]]:
        """Ratio of the seconds of a step, turns to long stretch, by cell and round."""
        found: dict[Cell, dict[int, float]] = {}
        for run in self.group.timing:
            if run.ok and run.round is not None and run.turn_seconds and run.stretch_seconds:
                ratio = fmean(run.turn_seconds) / run.stretch_seconds
                found.setdefault(run.cell, {})[run.round] = ratio
        return {cell: found[cell] for cell in self.cells if cell in found}

    @functools.cached_property
    def target(self) -> float | None:
        """The score to time the way to, None where nothing gives one."""
        if self.given_target is not None:
            return self.given_target
        plain = list(self.accuracy.get(PLAIN, {}).values())
        loss = self.group.scoring.sign * self.settings.margin
        return sum(plain) / len(plain) - loss if plain else None

    @functools.cached_property
    def to_target(self) -> Measure | None:
        """The measure of the seconds to `target`; None without one."""
        if self.target is None:
            return None
        return to_target(self.target, self.points, self.group.scoring)

    @functools.cached_property
    def bad(self) -> dict[Cell, str]:
        """The cells with a run that ended badly, and how the first of them did."""
        found: dict[Cell, str] = {}
        for run in self.group.runs:
            if not run.ok:
                found.setdefault(run.cell, run.status)
        return found

    @functools.cached_property
    def copies(self) -> dict[Cell, Cell]:
        """Cells that do the work of another one, and that one: dp on one device, none."""
        return {
            cell: Cell(PLAIN.parallel, cell.amp)
            for cell in self.cells
            if cell.parallel != PLAIN.parallel and {run.no_op for run in self._ok(cell)} == {True}
        }

    @functools.cached_property
    def needless(self) -> dict[Cell, Cell]:
        """Cells with a GradScaler but without float16, and for each the cell without a GradScaler.

        Only gradients of float16 underflow where a larger loss would keep them.
        """
        does = {
            cell: {(run.cell.strategy, run.dtype, run.grad_scaler) for run in self._ok(cell)}
            for cell in self.cells
        }
        return {
            cell: other
            for cell, own in does.items()
            for strategy, dtype, scaled in own
            if len(own) == 1 and scaled and dtype not in (None, "float16")
            for other, its in does.items()
            if its == {(strategy, dtype, False)}
        }

    @functools.cached_property
    def controls(self) -> list[tuple[Cell, Cell]]:
        """The A/A pairs: two cells that do the same work, in the same time."""
        return [pair for pair in self.alike if pair not in self.uncontrolled]

    @functools.cached_property
    def uncontrolled(self) -> list[tuple[Cell, Cell]]:
        """The pairs that do the same work, but not in the same time: dp's wrapper shows.

        On a GPU it walks through all parameters and scatters the batch in each step. Where that can
        be as much of a step as counts as equal, it is no noise.
        """
        return [
            (first, second)
            for first, second in self.alike
            if any(set(run.devices) - {"cpu"} for run in self._ok(second))
            and (step := self.step_seconds(first)) is not None
            and self.settings.same * step < WRAPPER
        ]

    @functools.cached_property
    def alike(self) -> list[tuple[Cell, Cell]]:
        """The pairs of cells that do the same work."""
        return [(first, second) for second, first in self.copies.items() if self._ok(first)]

    def step_seconds(self, cell: Cell) -> float | None:
        """Return the mean seconds of a step of a cell, None if unknown."""
        steps = [
            run.train_seconds / run.steps
            for run in self._ok(cell)
            if run.timed is self.timed and run.train_seconds and run.steps
        ]
        return fmean(steps) if steps else None

    @functools.cached_property
    def different(self) -> dict[Cell, str]:
        """The cells whose first steps do not compute what the baseline's do, and why."""
        rows = (self.numerics or {}).get("rows") or []
        return {
            row["cell"]: str(row.get("sentence") or "")
            for row in rows
            if row.get("verdict") == OTHER and not row.get("by_design")
        }

    @functools.cached_property
    def batch_norm(self) -> list[Cell]:
        """The cells whose batch norm differs by design, so that only their score can judge."""
        rows = (self.numerics or {}).get("rows") or []
        return [row["cell"] for row in rows if row.get("by_design")]

    def chunked(self, cell: Cell) -> bool:
        """Whether a cell computes parts of a batch one after the other."""
        return any((run.chunks or 1) > 1 for run in self._ok(cell))

    @functools.cached_property
    def safe(self) -> dict[Cell, str]:
        """The verdict on each cell's score: safe, worse, not enough runs; safe if not scored."""
        if not self.scored:
            return dict.fromkeys(self.cells, "safe")
        found = {safety.cell: str(safety.verdict) for safety in self.comparison.safety}
        for cell in self.cells:
            found.setdefault(cell, OPEN)
        return {**found, PLAIN: "safe"} if self._ok(PLAIN) else found

    def phases(self, cell: Cell) -> dict[str, float] | None:
        """Return the percentage of each phase in the sampled steps, the mean over its runs."""
        shares: list[list[float]] = []
        for run in self._ok(cell):
            seconds = [run.phase(name) or 0.0 for name in PHASES]
            if sum(seconds) > 0:
                shares.append([100 * phase / sum(seconds) for phase in seconds])
        means = [fmean(column) for column in zip(*shares, strict=True)]
        return dict(zip(PHASES, means, strict=True)) if means else None

    def waits_for_data(self, cell: Cell) -> bool:
        """Whether a tenth or more of a cell's steps goes into loading and transferring batches."""
        phases = self.phases(cell) or {}
        return phases.get("data", 0.0) + phases.get("transfer", 0.0) >= WAITING

    def speedup(self, cell: Cell) -> Speedup | None:
        """Return a cell's throughput over that of parallel=none, same precision; and what is ideal.

        Processes on a CPU share its cores, so that several of them count as one device. Where the
        study swept processes, `scaling` says it instead.
        """
        base, speeds = Cell(PLAIN.parallel, cell.amp), self.values(THROUGHPUT)
        one, own = speeds.get(base, {}), speeds.get(cell, {})
        hosts = self.hosts(THROUGHPUT)
        pairs = [
            own[key] / one[key]
            for key in own
            if one.get(key) and hosts[cell][key] == hosts[base][key]
        ]
        if cell == base or not pairs or self.group.scaling:
            return None
        devices = max((run.devices for run in self._ok(cell)), key=len, default=[])
        return Speedup(
            value=sum(pairs) / len(pairs),
            ideal=1 if set(devices) <= {"cpu"} else len(devices),
        )

    def safety(self, cell: Cell) -> Safety | None:
        """Return the test of a cell's score against the baseline's."""
        return next((each for each in self.comparison.safety if each.cell == cell), None)

    def _ok(self, cell: Cell) -> list[Run]:
        return [run for run in self.runs(cell) if run.ok]


def gather_evidence(
    group: Group,
    points: Sequence[Point],
    sweep: StudyRecord,
    numerics: Mapping[str, Any] | None,
    unfinished: bool = False,
) -> Evidence:
    """Return the evidence of a group; the margins are in its study's record."""
    folders = {run.folder for run in group.runs}
    settings, target = _settings(sweep, group.scoring)
    if group.timing:
        settings = replace(settings, looks=len(TIMING_LOOKS), score_looks=settings.looks)
    return Evidence(
        group,
        tuple(point for point in points if point.folder in folders),
        settings,
        target,
        numerics,
        unfinished,
        tuple(sweep.asked),
        unmargined=not settings.margin,
    )


def _settings(sweep: StudyRecord, score: Score) -> tuple[Settings, float | None]:
    """Return the settings of a sweep, and defaults for those that cannot be read.

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
