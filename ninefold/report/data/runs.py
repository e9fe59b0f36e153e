"""Run: the result of a run and its place in a study, read from a run folder or from runs.csv."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from statistics import fmean
from typing import Any

from ninefold.config.rules import NAME
from ninefold.errors import ConfigError, one_line
from ninefold.report.data.csv_files import read_rows, write_rows
from ninefold.result import PHASES, PROCESSES, SCORE, Result, strategy_name

PARALLEL = ("none", "dp", "ddp", "fsdp", "tensor")
AMP = ("fp32", "autocast", "scaler", "tf32", "bf16")
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
MOST = 100_000  # runs of a recording
LARGEST = 10**15  # a larger number was not measured: 30 million years, a petabyte
LONGEST = 64  # characters of the name of a score or of a further figure
RESTORE = "restore the file from version control"


@dataclass
class Run(Result):
    """One row of runs.csv. What a run that ended early did not measure is None or empty.

    folder: relative to the folder of the sweep.
    round, attempt: the round of the study that the run belongs to, both from 0.
    drifted: whether the machine was too slow in that round.
    counted: whether the run enters figures. None, as the three above: the sweep has no rounds.
    part: the segment of a resumed study, from 0.
    on_hosts: numbers of the hosts it was made on, in the whole report; empty: unknown.
    scaling: how the batch grows with the processes that the study swept: strong, not at all; weak,
        as they do. None: they were not swept, and are no part of its cell.
    oversubscribed: whether a host had fewer cores than threads of this run, or fewer GPUs than
        processes; None: unknown.
    """

    folder: str = ""
    round: int | None = None
    attempt: int | None = None
    drifted: bool | None = None
    counted: bool | None = None
    part: int | None = None
    on_hosts: list[int] = field(default_factory=list)
    scaling: str | None = None
    oversubscribed: bool | None = None

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
    def to_train(self) -> float | None:
        """The planned epochs, which may be more than were trained."""
        return self.epochs if self.planned_epochs is None else self.planned_epochs

    @property
    def settings(self) -> tuple[str, ...]:
        """What was set apart from the cell: the overrides, and the experiment file."""
        said = [text for text in self.overrides if not (self.scaling and _of_processes(text))]
        return (*said, *([f"experiments={self.study}"] if self.study else []))

    @property
    def cell(self) -> str:
        """The name of the run's cell, such as `ddp-scaler`, or `ddp x4-scaler`."""
        return f"{self.strategy or 'unknown'}-{self.amp or 'unknown'}"

    @property
    def strategy(self) -> str | None:
        """Its strategy, with the processes where the study swept them: `ddp x4`."""
        if self.parallel is None:
            return None
        return strategy_name(self.parallel, self.processes if self.scaling else None)

    @property
    def own_batch(self) -> int | None:
        """The batch size that its cell shares with others: of a process where scaling is weak."""
        if self.scaling != "weak" or not self.batch_size or not self.processes:
            return self.batch_size
        return self.batch_size // self.processes

    @property
    def score_name(self) -> str:
        """The name of its score as a noun: `accuracy`, `mean IoU`, `share within 4 mm`."""
        name = one_line(self.score or "")[:LONGEST] or SCORE
        return f"share {name}" if name.startswith("within ") else name

    def phase(self, name: str) -> float | None:
        """Return the seconds sampled in a phase, None if unknown."""
        return self.phase_seconds.get(name)


def _of_processes(override: str) -> bool:
    return override.lstrip("+").partition("=")[0] == PROCESSES


def _bool(text: str) -> bool:
    return {"true": True, "false": False}[text]


def _int(text: str) -> int:
    value = int(text)
    _require_measured(value)
    return value


def _float(text: str) -> float:
    value = int(text) if text.isdigit() else float(text)  # ten epochs are 10, not 10.0
    _require_measured(value)
    return value


def _require_measured(value: float) -> None:
    if abs(value) > LARGEST:
        raise ValueError("the number is too large")


def _list_of(item: Callable[[str], Any]) -> Callable[[str], list[Any]]:
    def read(text: str) -> list[Any]:
        values = json.loads(text)
        if not isinstance(values, list):
            raise ValueError("a list is expected")
        return [item(str(value)) for value in values]

    return read


def _figures(text: str) -> dict[str, float | None]:
    values = json.loads(text)
    if not isinstance(values, dict):
        raise ValueError("an object is expected")
    return {
        one_line(name)[:LONGEST]: None if value is None else _float(json.dumps(value))
        for name, value in values.items()
    }


def _columns() -> dict[str, Callable[[str], Any]]:
    """The columns of runs.csv in their order, with the function that reads the text of each."""
    by_type: dict[str, Callable[[str], Any]] = {
        "str": str,
        "int": _int,
        "float": _float,
        "bool": _bool,
        "list[str]": _list_of(str),
        "list[int]": _list_of(_int),
        "list[float]": _list_of(_float),
        "dict[str, float | None]": _figures,
    }
    columns: dict[str, Callable[[str], Any]] = {"folder": str}
    for own in fields(Run):
        kind = str(own.type).removesuffix(" | None")
        if own.name == "phase_seconds":
            columns.update({f"{phase}_seconds": _float for phase in PHASES})
        elif kind in by_type and own.name != "exit_code":
            columns[own.name] = by_type[kind]
    return columns


COLUMNS = _columns()


def row_of(result: Mapping[str, Any]) -> dict[str, str]:
    """Return the row of runs.csv for the fields of a run."""
    flat = dict(result)
    if isinstance(phases := result.get("phase_seconds"), dict):
        flat.update({f"{name}_seconds": phases.get(name) for name in PHASES})
    return {name: _text(flat.get(name)) for name in COLUMNS}


def _text(value: Any) -> str:
    if value is None or value in ([], (), {}):
        return ""
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def run_of(row: Mapping[str, str]) -> Run:
    """Return the run of a row of runs.csv; ValueError names a column that cannot be read."""
    values: dict[str, Any] = {}
    for name, read in COLUMNS.items():
        if text := row.get(name) or "":
            try:
                values[name] = read(text)
                if name in NAMES and not NAME.fullmatch(text):
                    raise ValueError("not a name")
            except (ValueError, TypeError, KeyError, OverflowError, RecursionError):
                raise ValueError(f"cannot read {name}={text[:100]!r}") from None
    if "folder" not in values or "status" not in values:
        raise ValueError("folder or status is empty")
    phases = {name: values.pop(f"{name}_seconds", None) for name in PHASES}
    known = {name: seconds for name, seconds in phases.items() if seconds is not None}
    return _by_all_turns(Run(**values, phase_seconds=known))


def _by_all_turns(run: Run) -> Run:
    """Return a timing run whose time is the mean of all its turns.

    Older versions recorded a mean of the fast ones, which is not what a long run takes.
    """
    if run.turn_seconds and run.steps and (step := fmean(run.turn_seconds)) > 0:
        run.train_seconds = run.steps * step
        run.images_per_second = run.batch_size / step if run.batch_size else None
    return run


def runs_of(results: Iterable[Mapping[str, Any]]) -> list[Run]:
    """Return the runs of result.json contents, ordered by dataset, model, cell and seed."""
    runs = []
    for result in results:
        try:
            runs.append(run_of(row_of(result)))
        except ValueError as problem:
            # One damaged file must not hide the other runs of a sweep: it is listed as unreadable.
            folder = str(result["folder"])
            runs.append(Run(folder=folder, status="unreadable", error=f"result: {problem}"))
    return sorted(runs, key=_order)


def write_csv(path: Path, runs: Iterable[Run]) -> None:
    """Write runs.csv."""
    write_rows(path, COLUMNS, (row_of(vars(run)).values() for run in runs))


def read_csv(path: Path) -> list[Run]:
    """Read runs.csv; ConfigError when it holds no run or a value that cannot be read."""
    try:
        rows = list(read_rows(path, MOST))
    except ValueError as problem:
        wrong = f"it cannot be read ({problem})"
        raise ConfigError("runs.csv", path, f"{wrong}; a table in UTF-8; {RESTORE}") from None
    runs = []
    for number, row in enumerate(rows, start=1):
        try:
            runs.append(run_of(row))
        except ValueError as problem:
            wrong, allowed = f"run {number}: {problem}", "every value as the report wrote it"
            raise ConfigError("runs.csv", path, f"{wrong}; {allowed}; {RESTORE}") from None
    if not runs:
        raise ConfigError("runs.csv", path, f"holds no run; one row per run; {RESTORE}")
    return runs


def position(name: str | None, known: tuple[str, ...]) -> tuple[int, str, int]:
    """Return a sort key: the known names in their order, then the others alphabetically.

    Names with a number of processes follow one another by that number.
    """
    base, _, count = (name or "").rpartition(" x")
    own = base if base and count.isdigit() else name or ""
    place = known.index(own) if own in known else len(known)
    return place, own, int(count) if own == base and base else 0


def _order(run: Run) -> tuple[Any, ...]:
    return (
        run.dataset or "",
        run.model or "",
        position(run.strategy, PARALLEL),
        position(run.amp, AMP),
        -1 if run.seed is None else run.seed,
        run.batch_size or 0,
        run.folder,
    )


def finite(value: object) -> float | None:
    """Return the value, None if it is no number or too large to have been measured."""
    if not isinstance(value, int | float) or isinstance(value, bool):
        return None
    return value if abs(value) <= LARGEST else None
