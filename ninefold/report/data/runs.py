"""Flattens run folders to the rows of runs.csv and reads them back."""

from __future__ import annotations

import csv
import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from ninefold.config.rules import NAME
from ninefold.errors import ConfigError
from ninefold.result import PHASES

PARALLEL = ("none", "dp", "ddp")
AMP = ("fp32", "autocast", "scaler", "tf32", "bf16")
NAMES = ("status", "study", "dataset", "model", "parallel", "amp", "dtype")
LARGEST = 10**15  # a number beyond it was not measured: 30 million years, a petabyte


@dataclass(frozen=True)
class Run:
    """One row of runs.csv; what a run that ended early did not get to is None or empty.

    Times are in seconds, memory in bytes, accuracies fractions of 1. `epochs` is a fraction where a
    run stopped within one. `folder` is relative to the sweep's folder. The last five are said by
    the study: the round that the run was part of, and whether it counts (None: there are none).
    """

    folder: str
    status: str
    error: str | None = None
    study: str | None = None
    dataset: str | None = None
    model: str | None = None
    parallel: str | None = None
    amp: str | None = None
    seed: int | None = None
    dtype: str | None = None
    grad_scaler: bool | None = None
    processes: int | None = None
    replicas: int | None = None
    devices: tuple[str, ...] = ()
    threads: int | None = None
    batch_size: int | None = None
    epochs: float | None = None
    planned_epochs: float | None = None
    steps: int | None = None
    skipped_steps: int | None = None
    accuracy: float | None = None
    best_accuracy: float | None = None
    test_loss: float | None = None
    test_count: int | None = None
    train_seconds: float | None = None
    evaluate_seconds: float | None = None
    total_seconds: float | None = None
    images_per_second: float | None = None
    data_seconds: float | None = None
    transfer_seconds: float | None = None
    forward_seconds: float | None = None
    backward_seconds: float | None = None
    optimizer_seconds: float | None = None
    phase_sampled_steps: int | None = None
    probe_seconds: tuple[float, ...] = ()
    ceiling_images_per_second: float | None = None
    energy_joules: float | None = None
    energy_source: str | None = None
    epoch_seconds: tuple[float, ...] = ()
    peak_memory_bytes: tuple[int, ...] = ()
    notes: tuple[str, ...] = ()
    overrides: tuple[str, ...] = ()
    round: int | None = None
    attempt: int | None = None
    drifted: bool | None = None
    counted: bool | None = None
    part: int | None = None

    @property
    def counts(self) -> bool:
        """Whether the run enters figures: all do in a sweep that has no rounds."""
        return self.counted is not False

    @property
    def ok(self) -> bool:
        """Whether the run ended well."""
        return self.status == "ok"

    @property
    def to_train(self) -> float | None:
        """The epochs that the run was to train, which may be more than it did."""
        return self.epochs if self.planned_epochs is None else self.planned_epochs

    @property
    def settings(self) -> tuple[str, ...]:
        """What its cell does not say: the overrides, and the study that set the rest."""
        return (*self.overrides, *([f"experiments={self.study}"] if self.study else []))

    @property
    def cell(self) -> str:
        """The name of the run's cell, such as `ddp-scaler`."""
        return f"{self.parallel or 'unknown'}-{self.amp or 'unknown'}"

    def phase(self, name: str) -> float | None:
        """Return the seconds sampled in a phase, or None where they are not known."""
        seconds: float | None = getattr(self, f"{name}_seconds")
        return seconds


def _truth(text: str) -> bool:
    return {"true": True, "false": False}[text]


def _whole(text: str) -> int:
    value = int(text)
    _require_measured(value)
    return value


def _number(text: str) -> float:
    value = int(text) if text.isdigit() else float(text)  # ten epochs are 10, not 10.0
    _require_measured(value)
    return value


def _require_measured(value: float) -> None:
    if abs(value) > LARGEST:
        raise ValueError("a number that is too large")


def _list_of(item: Callable[[Any], Any]) -> Callable[[str], tuple[Any, ...]]:
    def read(text: str) -> tuple[Any, ...]:
        values = json.loads(text)
        if not isinstance(values, list):
            raise ValueError("a list is expected")
        return tuple(item(value) for value in values)

    return read


# By the annotation of a field: how its text in runs.csv is read.
_READ: dict[str, Callable[[str], Any]] = {
    "str": str,
    "str | None": str,
    "int | None": _whole,
    "float | None": _number,
    "bool | None": _truth,
    "tuple[str, ...]": _list_of(str),
    "tuple[int, ...]": _list_of(lambda value: _whole(str(value))),
    "tuple[float, ...]": _list_of(lambda value: _number(str(value))),
}
COLUMNS = tuple(field.name for field in fields(Run))


def row_of(result: Mapping[str, Any]) -> dict[str, str]:
    """Return the row of runs.csv for a result.json that has been given its `folder`."""
    flat = dict(result)
    phases = result.get("phase_seconds")
    if isinstance(phases, dict):
        flat.update({f"{name}_seconds": phases.get(name) for name in PHASES})
    return {name: _text(flat.get(name)) for name in COLUMNS}


def _text(value: Any) -> str:
    if value is None or value in ([], ()):
        return ""
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def run_of(row: Mapping[str, str]) -> Run:
    """Return the run that a row of runs.csv describes; ValueError names a column it cannot read."""
    values: dict[str, Any] = {}
    for field in fields(Run):
        text = row.get(field.name) or ""
        if text:
            try:
                values[field.name] = _READ[str(field.type)](text)
                if field.name in NAMES and not NAME.fullmatch(text):
                    raise ValueError("not a name")
            except (ValueError, TypeError, KeyError, OverflowError, RecursionError):
                raise ValueError(f"cannot read {field.name}={text[:100]!r}") from None
    if "folder" not in values or "status" not in values:
        raise ValueError("folder or status is empty")
    return Run(**values)


def rows_of(results: Iterable[Mapping[str, Any]]) -> list[dict[str, str]]:
    """Return the rows of runs.csv, ordered by dataset, model, cell and seed."""
    rows = []
    for result in results:
        row = row_of(result)
        try:
            run_of(row)
        except ValueError as problem:
            # One bad file must not hide the other runs of a sweep: it is listed as what it is.
            row = row_of(
                {"folder": result["folder"], "status": "unreadable", "error": f"result: {problem}"}
            )
        rows.append(row)
    return sorted(rows, key=lambda row: _order(run_of(row)))


def write_csv(path: Path, runs: Iterable[Run]) -> None:
    """Write runs.csv."""
    with path.open("w", encoding="utf-8", newline="") as file:
        writer = csv.DictWriter(file, COLUMNS, lineterminator="\n")
        writer.writeheader()
        writer.writerows({name: _text(getattr(run, name)) for name in COLUMNS} for run in runs)


def read_csv(path: Path) -> list[Run]:
    """Read runs.csv; ConfigError when it holds no run or a value that cannot be read."""
    try:
        with path.open(encoding="utf-8", newline="") as file:
            rows = list(csv.DictReader(file))
    except (ValueError, csv.Error) as problem:
        raise ConfigError(
            "runs.csv", path, f"it cannot be read ({problem})", "a table in UTF-8",
            "restore the file from version control",
        ) from None  # fmt: skip
    runs = []
    for number, row in enumerate(rows, start=1):
        try:
            runs.append(run_of(row))
        except ValueError as problem:
            raise ConfigError(
                "runs.csv",
                str(path),
                f"run {number}: {problem}",
                "every value as the report wrote it",
                "restore the file from version control",
            ) from None
    if not runs:
        raise ConfigError(
            "runs.csv",
            str(path),
            "holds no run",
            "one row per run",
            "restore the file from version control",
        )
    return runs


def position(name: str | None, known: tuple[str, ...]) -> tuple[int, str]:
    """Return a sort key: the known names in their order, then the others by the alphabet."""
    return (known.index(name) if name in known else len(known), name or "")


def _order(run: Run) -> tuple[Any, ...]:
    return (
        run.dataset or "",
        run.model or "",
        position(run.parallel, PARALLEL),
        position(run.amp, AMP),
        -1 if run.seed is None else run.seed,
        run.batch_size or 0,
        run.folder,
    )


def finite(value: object) -> float | None:
    """Return the value, or None where it is no number, or none that can have been measured."""
    if not isinstance(value, int | float) or isinstance(value, bool):
        return None
    return value if abs(value) <= LARGEST else None
