"""Learning curves: the evaluations of each run during training, curves.csv."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, fields
from pathlib import Path

from ninefold.errors import ConfigError
from ninefold.files import lines
from ninefold.report.data.csv_files import read_rows, write_rows
from ninefold.report.data.runs import finite

METRICS = "metrics.jsonl"
MAX_BYTES = 1 << 28  # bytes of a file that is read
MAX_EVALUATIONS = 10_000  # evaluations of a run


@dataclass(frozen=True)
class Point:
    """One evaluation.

    folder: of the run
    epoch: a fraction within an epoch
    seconds: of the inner clock, None if unknown
    accuracy: the task's score, a fraction
    loss: None if unknown
    """

    folder: str
    epoch: float
    step: int
    seconds: float | None
    accuracy: float
    loss: float | None


def read_metrics(folder: Path, runs: Sequence[str]) -> list[Point]:
    """Return the evaluations in the run folders `runs`, which are relative to `folder`."""
    return [point for run in runs for point in _evaluations(folder / run / METRICS, run)]


def _evaluations(path: Path, run: str) -> list[Point]:
    found: list[Point] = []
    try:
        for line in lines(path, MAX_BYTES):
            if b'"test_accuracy"' in line and (point := _point(line, run)):
                found.append(point)
    except OSError:
        return []
    return found[:MAX_EVALUATIONS]


def _point(line: bytes, run: str) -> Point | None:
    """Return the evaluation in a line of metrics.jsonl, None if it is not a valid one."""
    try:
        said = json.loads(line)
    except (ValueError, RecursionError):
        return None
    if not isinstance(said, dict):
        return None
    names = ("epoch", "step", "seconds", "test_accuracy", "test_loss")
    found = (finite(said.get(name)) for name in names)
    epoch, step, seconds, accuracy, loss = (None if x is None else float(x) for x in found)
    if epoch is None or step is None or accuracy is None:
        return None
    return Point(run, epoch, int(step), seconds, accuracy, loss)


def write_curves(path: Path, points: Iterable[Point]) -> None:
    """Write curves.csv, in the order given."""
    columns = [field.name for field in fields(Point)]
    values = ((getattr(point, name) for name in columns) for point in points)
    write_rows(path, columns, (("" if v is None else v for v in row) for row in values))


def read_curves(path: Path) -> list[Point]:
    """Read curves.csv, empty if there is no such file; ConfigError if it cannot be read."""
    if not path.is_file():
        return []
    try:
        return [
            Point(
                row["folder"],
                _known(row["epoch"]),
                int(_known(row["step"])),
                _known(row["seconds"]) if row["seconds"] else None,
                _known(row["accuracy"]),
                _known(row["loss"]) if row["loss"] else None,
            )
            for row in read_rows(path)
        ]
    except (KeyError, TypeError, ValueError) as problem:
        raise ConfigError(
            "curves.csv",
            path,
            f"it cannot be read ({problem}); the file that the report wrote; restore the file "
            "from version control",
        ) from None


def _known(text: str) -> float:
    number = finite(float(text))
    if number is None:
        raise ValueError(f"{text[:100]!r} was not measured")
    return number
