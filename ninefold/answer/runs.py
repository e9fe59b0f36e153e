"""Run and RunGroup: the runs of a study, of which its facts are."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field
from statistics import fmean
from typing import Annotated

from msgspec import Meta

from ninefold.answer.cell import Cell, plainness
from ninefold.errors import one_line
from ninefold.numbers import plural, rounded_epochs
from ninefold.result import BEHIND, PROCESSES, Result
from ninefold.score import PHASES, SCORE, Score
from ninefold.study_record import StudyRecord
from ninefold.tournament.taken import TakenTurn
from ninefold.words import key_of

MAX_NUMBER = 10**15  # a larger number was not measured: 30 million years, a petabyte
Bounded = Annotated[float, Meta(ge=-MAX_NUMBER, le=MAX_NUMBER)]
MAX_NAME_CHARS = 64  # characters of the name of a score or of a further figure
MAX_UNIT_CHARS = 16  # characters of its unit
WAITING = 10.0  # percent of a step in data and transfer from which on a cell waits for them


@dataclass
class Run(Result):
    """The result of a run and its place in a study: a row of runs.csv.

    What a run that ended early did not measure is None or empty.

    folder: relative to the folder of the sweep.
    round: the round of the study that the run belongs to, from 0.
    counted: whether the run enters figures. None, as the one above: the sweep has no rounds.
    on_hosts: numbers of the hosts it was made on, in the whole report; empty: unknown.
    scaling: how the batch grows with the processes that the study swept: strong, not at all; weak,
        as they do. None: they were not swept, and are no part of its cell.
    taken: the turns of a timing run, in order.
    """

    folder: str = ""
    round: int | None = None
    counted: bool | None = None
    on_hosts: list[int] = field(default_factory=list)
    scaling: str | None = None
    taken: list[TakenTurn] = field(default_factory=list)

    @property
    def counts(self) -> bool:
        """Whether the run enters figures: in a sweep without rounds, all runs do."""
        return self.counted is not False

    @property
    def ok(self) -> bool:
        """Whether the run completed."""
        return self.status == "ok"

    @property
    def timed(self) -> bool:
        """Whether it is a timing run, which took turns with the other cells."""
        return self.turns is not None

    @property
    def place(self) -> int | None:
        """What it is paired by with runs of other cells: the timing round, or the seed."""
        return self.round if self.timed else self.seed

    @property
    def kept(self) -> list[float]:
        """The seconds of a step in each of its turns that count."""
        return [turn.seconds for turn in self.taken if turn.left_out is None]

    @property
    def counted_seconds(self) -> float | None:
        """Seconds of its steps: of a timing run as the turns that count take them, if any does."""
        if not self.taken:
            return self.train_seconds
        return (self.steps or 0) * fmean(self.kept) if self.kept else None

    @property
    def step_seconds(self) -> float | None:
        """Seconds of a step, by `counted_seconds`."""
        return self.counted_seconds / self.steps if self.counted_seconds and self.steps else None

    @property
    def throughput(self) -> float | None:
        """Examples a second: of a timing run in the turns that count."""
        if not self.taken:
            return self.examples_per_second
        return self.batch_size / fmean(self.kept) if self.batch_size and self.kept else None

    @property
    def to_train(self) -> float | None:
        """The planned epochs, which may be more than were trained."""
        return self.epochs if self.planned_epochs is None else self.planned_epochs

    @property
    def settings(self) -> tuple[str, ...]:
        """What was set apart from the cell: the overrides, and the experiment file."""
        swept = PROCESSES if self.scaling else None
        said = [text for text in self.overrides if key_of(text) != swept]
        return (*said, *([f"experiments={self.study}"] if self.study else []))

    @property
    def cell(self) -> Cell:
        """The cell of the run: with its processes where the study swept them."""
        swept = self.scaling and self.max_processes != 1
        processes = self.processes if swept else None
        return Cell(self.parallel or "unknown", self.amp or "unknown", processes)

    @property
    def own_batch(self) -> int | None:
        """The batch size that its cell shares with others: of a process where scaling is weak."""
        if self.scaling != "weak" or not self.batch_size or not self.processes:
            return self.batch_size
        return self.batch_size // self.processes

    @property
    def scoring(self) -> Score:
        """What its score is, its name as a noun, by what anybody may have written about it."""
        said = super().scoring
        name = one_line(self.score_name or "")[:MAX_NAME_CHARS] or SCORE
        noun = f"share {name}" if name.startswith("within ") else name  # `share within 4 mm`
        margin, unit = finite(said.margin), one_line(said.unit)[:MAX_UNIT_CHARS]
        return Score(noun, unit, said.better, margin if margin and margin > 0 else None)


@dataclass(frozen=True)
class Point:
    """One evaluation of a run.

    folder: of the run
    epoch: a fraction within an epoch
    seconds: of the inner clock, None if unknown
    score: the task's, a fraction
    loss: None if unknown
    """

    folder: str
    epoch: Bounded
    step: Annotated[int, Meta(ge=0, le=MAX_NUMBER)]
    seconds: Bounded | None
    score: Bounded
    loss: Bounded | None


@dataclass(frozen=True)
class RunGroup:
    """Runs that may be compared: same dataset, model, batch size and planned epochs.

    variant: the settings that its runs share and the runs of other groups do not
    scoring: what the task scores by
    batch_size: of each process where scaling is weak
    """

    dataset: str | None
    model: str | None
    batch_size: int | None
    epochs: float | None
    variant: str
    runs: tuple[Run, ...]
    scoring: Score

    @property
    def score(self) -> str:
        """The name of the task's score."""
        return self.scoring.name

    @property
    def title(self) -> str:
        """The group's conditions as a heading; runs that all failed may not know them."""
        variant = f", {self.variant}" if self.variant else ""
        batch = str(self.batch_size or "unknown") + " per process" * (self.scaling == "weak")
        known = None if self.epochs is None else rounded_epochs(self.epochs)
        epochs = "unknown" if known is None else f"{known:g}"
        size = f"batch {batch}, {epochs} {plural(known or 0, 'epoch')}"
        return f"{self.model} on {self.dataset}, {size}{variant}"

    @property
    def scaling(self) -> str | None:
        """How the batch grows with the processes that the study swept; None: not swept."""
        return next((run.scaling for run in self.runs if run.scaling), None)

    @property
    def cells(self) -> list[Cell]:
        """The cells that its runs name, the simplest first."""
        return sorted({run.cell for run in self.runs}, key=plainness)

    @property
    def ok(self) -> int:
        """The number of runs that completed."""
        return sum(run.ok for run in self.runs)

    @property
    def on_hosts(self) -> int:
        """The number of hosts that one of its runs had at most."""
        return max((len(run.on_hosts) for run in self.runs), default=0)

    @property
    def timing(self) -> tuple[Run, ...]:
        """Its timing runs."""
        return tuple(run for run in self.runs if run.timed)

    @property
    def training(self) -> tuple[Run, ...]:
        """Its runs that were trained as a whole."""
        return tuple(run for run in self.runs if not run.timed)

    def of(self, cell: Cell) -> list[Run]:
        """The runs of one cell."""
        return [run for run in self.runs if run.cell == cell]

    def completed(self, cell: Cell) -> list[Run]:
        """The runs of one cell that completed."""
        return [run for run in self.of(cell) if run.ok]

    def step_seconds(self, cell: Cell) -> float | None:
        """The mean seconds of a step of a cell, of timing runs if there are any; or None."""
        runs = [run for run in self.completed(cell) if run.timed is bool(self.timing)]
        steps = [run.step_seconds for run in runs if run.step_seconds]
        return fmean(steps) if steps else None


def name_of(run: Run, sweep: StudyRecord) -> str | None:
    """Return what a study calls the cell of a run, including the swept values.

    None if the run does not say which of them it had. Cells lack the keys that their options lack.
    """
    known = {
        "dataset": run.dataset,
        "model": run.model,
        "batch_size": run.own_batch,
        "epochs": None if run.to_train is None else f"{run.to_train:g}",
    }
    said = {text.lstrip("+") for text in run.settings}
    said |= {f"{key}={value}" for key, value in known.items()}
    axes = run.parallel, run.amp
    own = [keys for keys in sweep.planned_cells if (keys.get("parallel"), keys.get("amp")) == axes]
    words = [str(run.cell)]
    for key, values in sweep.swept.items():
        if key not in ("parallel", "amp", "seed") and not (key == PROCESSES and run.scaling):
            found = [text for value in values if (text := f"{key}={value}") in said]
            if not found and all(key in keys for keys in own):
                return None
            words += found
    return " ".join(words)


def phases(runs: Sequence[Run]) -> dict[str, float] | None:
    """The percentage of each phase in the sampled steps of runs, the mean over them."""
    shares = defaultdict[str, list[float]](list)
    for run in runs:
        whole = sum(run.phase_seconds.values())
        for name in PHASES:
            if whole and name in run.phase_seconds:
                shares[name].append(100 * run.phase_seconds[name] / whole)
    return {name: fmean(each) for name, each in shares.items()} or None


def waits_for_data(runs: Sequence[Run]) -> bool:
    """Whether a tenth or more of the steps of runs goes into loading and transferring batches."""
    shares = phases(runs) or {}
    return shares.get("data", 0.0) + shares.get("transfer", 0.0) >= WAITING


def waits_for_host(runs: Sequence[Run]) -> bool:
    """Whether the GPUs of runs have done nearly all of a step as soon as the host has queued it.

    A GPU that is the limit is behind then: the host runs ahead of it. Runs that wait for their data
    are others.
    """
    shares = [run.gpu_behind for run in runs if run.gpu_behind is not None]
    return bool(shares) and fmean(shares) < BEHIND and not waits_for_data(runs)


def device_lists(runs: Sequence[Run]) -> list[tuple[str, ...]]:
    """The names of the devices that runs were made on, each different list once."""
    return [*dict.fromkeys(tuple(sorted({*run.devices})) for run in runs if run.devices)]


def finite(value: object) -> float | None:
    """Return the value, None if it is no number or too large to have been measured."""
    if not isinstance(value, int | float) or isinstance(value, bool):
        return None
    return value if abs(value) <= MAX_NUMBER else None
