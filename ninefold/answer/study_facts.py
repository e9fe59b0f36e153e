"""What is known of the configurations of a study, besides the times that `Facts` has."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass

from ninefold.answer.answer import Compared
from ninefold.answer.cell import PLAIN, Cell, plainness
from ninefold.answer.facts import Facts
from ninefold.answer.runs import Run, RunGroup, waits_for_data, waits_for_host
from ninefold.numbers import plural
from ninefold.score import LOSS
from ninefold.stats.verdicts import OPEN, Safety
from ninefold.study_record import StudyRecord

FAILED_RUN, COPY, OTHER_NUMERICS = "failed run", "copy", "other numerics"
NEEDLESS = "GradScaler without float16"
UNSCALED, OTHER_LOSS = "float16 without a GradScaler", "loss of a part of the batch"
SHORT_WEIGHTS = "weights in bfloat16"
WRAPPER = 1e-4  # seconds that DataParallel itself may take of a step on one GPU: read, not measured
FORMATS = {"bfloat16": "bf16", "float16": "fp16"}
SAME, WITHIN, OTHER = "the same", "the same within its precision", "not the same"  # of numerics


@dataclass(frozen=True)
class CellNumerics:
    """The first steps of a cell beside the baseline's: of several runs the worst.

    The figures are those of the first step, `loss_deviation` of all. verdict: SAME, WITHIN or
    OTHER, and `sentence`, why. by_design: whether batch norm over parts of a batch explains it.
    """

    cell: Cell
    first_loss_deviation: float | None
    loss_deviation: float | None
    cosine: float | None
    flushed: float | None
    update_ratio: float | None
    verdict: str
    sentence: str
    by_design: bool


@dataclass(frozen=True)
class Numerics:
    """The first steps of a group's cells. about: what was compared, and how."""

    about: str
    rows: list[CellNumerics]


@dataclass(frozen=True, kw_only=True)
class StudyFacts(Facts):
    """One group of comparable runs, and what follows from them for its cells.

    Its times are seconds per epoch; of whole runs, which show no difference of time, only where
    there is one cell. Its turns are those of the whole study, over which it is decided which of
    them count.

    group: the runs. cells: those that any run names, simplest first.
    sweep: what their study recorded of itself.
    unfinished: whether the study has runs left to do.
    scored: whether scores were asked, even if no run has one yet.
    numerics: comparison of the first steps, None where none was recorded.
    failed: the cells with a run that ended badly, and how the first of them did.
    stopped: the cells with a run that resuming the study would complete, and its status.
    no_op_of: the cells that do the work of another one, as dp does none's on one device.
    redundant_scaler_of: the cells with a GradScaler but without float16, and for each the cell
        without a GradScaler: only gradients of float16 underflow where a larger loss would keep
        them.
    uncontrolled: the pairs that do the same work in another time, as DataParallel itself shows.
    scores: on the test set by cell and seed; in percent if they are shares.
    target: the score to time the way to, None where nothing gives one.
    """

    group: RunGroup
    cells: list[Cell]
    sweep: StudyRecord
    unfinished: bool
    scored: bool
    numerics: Numerics | None
    failed: Mapping[Cell, str]
    stopped: Mapping[Cell, str]
    no_op_of: Mapping[Cell, Cell]
    redundant_scaler_of: Mapping[Cell, Cell]
    uncontrolled: Sequence[tuple[Cell, Cell]]
    scores: Mapping[Cell, Mapping[int, float]]
    target: float | None

    def excluded(self, name: Cell) -> str | None:
        """Why a cell is not recommended whatever its numbers are, or None."""
        if name in self.failed:
            return FAILED_RUN
        if self.no_op_of.get(name) in self.cells:
            return COPY
        plain = self.redundant_scaler_of.get(name)
        if plain is not None and plain not in self.failed:
            return NEEDLESS
        if name in self.other_numerics():
            return OTHER_NUMERICS
        if name in self.other_losses() and (not self.scored or self.group.score == LOSS):
            return OTHER_LOSS
        if self.scored:  # then the scores judge
            return None
        if name in self.unscaled():
            return UNSCALED
        short = self._of_runs(lambda run: run.weights == "bfloat16")  # small updates leave them
        return SHORT_WEIGHTS if name in short else None

    def simplicity(self, name: Cell) -> object:
        return plainness(name)

    @property
    def not_ok(self) -> dict[Cell, str]:
        """The cells with a run that did not complete, and its status."""
        return {**self.stopped, **self.failed}

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
        """Whether its times are of timing rounds."""
        return bool(self.group.timing)

    @property
    def asks_time(self) -> bool:
        """Whether it can tell which cell is the fastest: turns do, and of one there is no doubt."""
        return self.timed or len(self.cells) < 2

    @property
    def unit(self) -> str:
        """What there is one value of time for: a seed or a round."""
        return "round" if self.timed else "seed"

    def label(self, cell: Cell) -> str:
        """What a configuration is called, with its number format: `ddp, autocast (bf16)`."""
        return f"{cell.strategy}, {self.precision(cell)}"

    def precision(self, cell: Cell) -> str:
        """What its precision is called, with its number format: `autocast (bf16)`."""
        formats = {FORMATS.get(run.dtype or "") for run in self.group.completed(cell)}
        formats -= {None, cell.amp}
        return cell.amp + (f" ({' or '.join(sorted(filter(None, formats)))})" if formats else "")

    def labels(self, cells: Iterable[Cell]) -> str:
        """Several labels; as each has a comma of its own, a semicolon is between them."""
        return "; ".join(map(self.label, cells))

    def named(self, cells: Collection[Cell]) -> Named | None:
        """Several labels for a sentence, the simplest first; None without one."""
        return Named(self.labels(sorted(cells, key=plainness)), len(cells)) if cells else None

    def speedup(self, cell: Cell, base: Cell = PLAIN) -> Compared | None:
        """The speedup of a configuration over another; None: not known."""
        if cell == base:
            return Compared(1.0, None, None, "baseline") if self.seconds.get(cell) else None
        return Compared.of(self.comparison.pair(base, cell))

    def other_numerics(self) -> dict[Cell, str]:
        """The cells whose first steps do not compute what the baseline's do, and why."""
        rows = self._rows_of_numerics()
        return {r.cell: r.sentence for r in rows if r.verdict == OTHER and not r.by_design}

    def unscaled(self) -> list[Cell]:
        """The cells in float16 without a GradScaler, whose small gradients may underflow.

        Without those whose first steps were compared with the baseline's and are within rounding.
        """
        kept = {row.cell for row in self._rows_of_numerics() if row.verdict != OTHER}
        unscaled = self._of_runs(lambda run: run.dtype == "float16" and not run.grad_scaler)
        return [cell for cell in unscaled if cell not in kept]

    def other_losses(self) -> list[Cell]:
        """The cells whose replicas take a part of a loss that is no mean of its parts."""
        return self._of_runs(lambda run: run.mean_loss is False and (run.replicas or 1) > 1)

    def batch_norm(self) -> list[Cell]:
        """The cells whose batch norm differs by design: only their score can judge."""
        return [row.cell for row in self._rows_of_numerics() if row.by_design]

    def _of_runs(self, holds: Callable[[Run], bool]) -> list[Cell]:
        """The cells that it holds for a completed run of."""
        return [cell for cell in self.cells if any(map(holds, self.group.completed(cell)))]

    def _rows_of_numerics(self) -> Sequence[CellNumerics]:
        return self.numerics.rows if self.numerics else []

    def waits_for_data(self, cell: Cell) -> bool:
        """Whether a tenth or more of a cell's steps goes into loading and transferring batches."""
        return waits_for_data(self.group.completed(cell))

    def waits_for_host(self, cell: Cell) -> bool:
        """Whether a cell's GPUs wait for the host that queues their work."""
        completed = self.group.completed(cell)
        return waits_for_host([run for run in completed if run.timed is self.timed])

    def safety(self, cell: Cell) -> Safety | None:
        """The test of a cell's score against the baseline's."""
        return next((each for each in self.comparison.safety if each.cell == cell), None)


@dataclass(frozen=True)
class Named:
    """Things as a sentence names them: `{0}` are their names, `{0:waits|wait}` by how many."""

    names: str
    count: int

    def __format__(self, words: str) -> str:
        one, _, several = words.partition("|")
        return plural(self.count, one, several) if words else self.names
