"""Run: the result of a run and its place in a study, read from a run folder or from runs.csv."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from statistics import fmean
from typing import Any

import msgspec

from ninefold.config.rules import NAME
from ninefold.errors import ConfigError, one_line
from ninefold.report.data.cell import Cell, plainness
from ninefold.report.data.csv_files import read_rows, text_of, write_rows
from ninefold.result import PROCESSES, TURN_COLUMNS, Number, Result, in_columns
from ninefold.score import PHASES, SCORE, Score, by_present_keys
from ninefold.tournament.taken import TakenTurn
from ninefold.words import key_of

NAMES = (
    "status",
    "study",
    "dataset",
    "model",
    "parallel",
    "amp",
    "dtype",
    "memory_format",
    "scaling",
)
NO_COLUMNS = ("version", "exit_code", "environment")  # fields that runs.csv does not have
MAX_RUNS = 100_000  # runs of a recording
MAX_NUMBER = 10**15  # a larger number was not measured: 30 million years, a petabyte
MAX_NAME_CHARS = 64  # characters of the name of a score or of a further figure
MAX_UNIT_CHARS = 16  # characters of its unit
LEFT_OUT = "turn_left_out"  # the column of why turns do not count, empty if all do
RESTORE = "restore the file from version control"


@dataclass
class Run(Result):
    """One row of runs.csv. What a run that ended early did not measure is None or empty.

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
        """Return whether the run enters figures: in a sweep without rounds, all runs do."""
        return self.counted is not False

    @property
    def ok(self) -> bool:
        """Return whether the run completed."""
        return self.status == "ok"

    @property
    def timed(self) -> bool:
        """Return whether it is a timing run, which took turns with the other cells."""
        return self.turns is not None

    @property
    def place(self) -> int | None:
        """Return what it is paired by with runs of other cells: the timing round, or the seed."""
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
        """Return what was set apart from the cell: the overrides, and the experiment file."""
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
    def noun(self) -> str:
        """The name of its score as a noun: `accuracy`, `mean IoU`, `share within 4 mm`."""
        name = one_line(self.score_name or "")[:MAX_NAME_CHARS] or SCORE
        return f"share {name}" if name.startswith("within ") else name

    @property
    def scoring(self) -> Score:
        """Return what its score is, by what anybody may have written about it."""
        said = super().scoring
        margin = finite(said.margin)
        return Score(
            self.noun,
            one_line(said.unit)[:MAX_UNIT_CHARS],
            said.better,
            margin if margin is not None and margin > 0 else None,
        )


def _columns() -> dict[str, bool]:
    """The columns of runs.csv in their order, and whether each holds text; the others hold JSON."""
    columns = {"folder": True}
    for own in fields(Run):
        if own.name == "phase_seconds":
            columns.update({f"{phase}_seconds": False for phase in PHASES})
        elif own.name == "taken":
            columns.update(dict.fromkeys((*TURN_COLUMNS, LEFT_OUT), False))
        elif own.name not in NO_COLUMNS:
            columns[own.name] = str(own.type).startswith("str")
    return columns


COLUMNS = _columns()


def row_of(result: Mapping[str, Any]) -> dict[str, str]:
    """Return the row of runs.csv for the fields of a run."""
    flat = dict(result)
    if isinstance(phases := result.get("phase_seconds"), dict):
        flat.update({f"{name}_seconds": phases.get(name) for name in PHASES})
    if taken := flat.get("taken"):
        why = [turn.left_out or "" for turn in taken]
        flat |= {**in_columns(taken), LEFT_OUT: why if any(why) else []}
    return {name: text_of(flat.get(name)) for name in COLUMNS}


def run_of(row: Mapping[str, str]) -> Run:
    """Return the run of a row of runs.csv; ValueError names a column that cannot be read."""
    found: dict[str, Any] = {}
    row = by_present_keys(row)
    for name, is_text in COLUMNS.items():
        if text := row.get(name):
            try:
                found[name] = text if is_text else json.loads(text)
            except (ValueError, RecursionError):
                raise _unreadable(name, text) from None
    if "folder" not in found or "status" not in found:
        raise ValueError("folder or status is empty")
    phases = {name: found.pop(f"{name}_seconds", None) for name in PHASES}
    found["phase_seconds"] = {name: each for name, each in phases.items() if each is not None}
    try:
        return _checked(msgspec.convert(found, Run), found)
    except msgspec.ValidationError as problem:
        raise ValueError(str(problem)) from None


def run_of_result(result: Mapping[str, Any]) -> Run:
    """Return the run of a result.json with its `folder` and, where known, `on_hosts`.

    One damaged file must not hide the other runs of a sweep: it is listed as unreadable.
    """
    folder, hosts = str(result["folder"]), result.get("on_hosts") or []
    try:
        return _checked(Run(**vars(Result.of(result)), folder=folder, on_hosts=hosts), result)
    except ValueError as problem:
        return Run("unreadable", str(problem), folder=folder, on_hosts=hosts)


def _checked(run: Run, columns: Mapping[str, Any]) -> Run:
    """Return a run with what anybody may have written about it. Raises ValueError.

    columns: of the file, with those of its turns.
    """
    run.taken = _taken(columns, run.steps or 0)
    for name in NAMES:
        if (text := getattr(run, name)) is not None and not NAME.fullmatch(text):
            raise _unreadable(name, text)
    for name, value in {**vars(run), **in_columns(run.taken)}.items():
        if name not in NO_COLUMNS and any(abs(number) > MAX_NUMBER for number in _numbers(value)):
            raise ValueError(f"{name} is too large")
    run.scores = {one_line(name)[:MAX_NAME_CHARS]: value for name, value in run.scores.items()}
    run.figures = {
        one_line(name)[:MAX_NAME_CHARS]: {
            key: one_line(text)[:MAX_NAME_CHARS] for key, text in said.items()
        }
        for name, said in run.figures.items()
    }
    if run.ok and run.no_op is None:
        raise ValueError("an earlier version of ninefold wrote it, whose files are not read")
    return run


def _taken(columns: Mapping[str, Any], steps: int) -> list[TakenTurn]:
    """The turns of a run of so many steps; none if a turn took no time."""
    found: dict[str, list[Any]] = {}
    for column, name in TURN_COLUMNS.items():
        values = columns.get(column) or []
        if not isinstance(values, list) or len([*_numbers(values)]) < len(values):
            raise _unreadable(column, str(values))
        found[name] = values
    count = len(found["seconds"])
    known = {name: values for name, values in found.items() if len(values) == count}
    taken = [
        TakenTurn(turn=turn, steps=steps // count, **{of: known[of][turn] for of in known})
        for turn in range(count)
    ]
    return taken if all(turn.seconds > 0 for turn in taken) else []


def _numbers(value: object) -> Iterator[Number]:
    """The numbers in a field of a run."""
    if isinstance(value, dict):
        value = list(value.values())
    for each in value if isinstance(value, list) else [value]:
        if isinstance(each, int | float):
            yield each


def _unreadable(name: str, text: str) -> ValueError:
    return ValueError(f"cannot read {name}={text[:100]!r}")


def in_order(runs: Iterable[Run]) -> list[Run]:
    """Return the runs by dataset, model, cell and seed."""
    return sorted(runs, key=_order)


def write_csv(path: Path, runs: Iterable[Run]) -> None:
    """Write runs.csv; the times of timing runs are those of the turns that count."""
    rows = (
        {**vars(run), "train_seconds": run.counted_seconds, "examples_per_second": run.throughput}
        for run in runs
    )
    write_rows(path, COLUMNS, (row_of(row).values() for row in rows))


def read_csv(path: Path) -> list[Run]:
    """Read runs.csv; ConfigError when it holds no run or a value that cannot be read."""
    try:
        rows = list(read_rows(path, MAX_RUNS))
    except ValueError as problem:
        wrong = f"it cannot be read ({problem})"
        raise ConfigError("runs.csv", path, wrong, "a table in UTF-8", RESTORE) from None
    runs = []
    for number, row in enumerate(rows, start=1):
        try:
            runs.append(run_of(row))
        except ValueError as problem:
            wrong, allowed = f"run {number}: {problem}", "every value as the report wrote it"
            raise ConfigError("runs.csv", path, wrong, allowed, RESTORE) from None
    if not runs:
        raise ConfigError("runs.csv", path, "holds no run", "one row per run", RESTORE)
    return runs


def _order(run: Run) -> tuple[Any, ...]:
    return (
        run.dataset or "",
        run.model or "",
        plainness(run.cell),
        -1 if run.seed is None else run.seed,
        run.batch_size or 0,
        run.folder,
    )


def finite(value: object) -> float | None:
    """Return the value, None if it is no number or too large to have been measured."""
    if not isinstance(value, int | float) or isinstance(value, bool):
        return None
    return value if abs(value) <= MAX_NUMBER else None
