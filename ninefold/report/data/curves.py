"""Learning curves: the evaluations of each run during training, curves.csv."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import fields
from pathlib import Path
from typing import Any

import msgspec

from ninefold.answer.runs import Point, finite
from ninefold.files import lines
from ninefold.report.data.csv_files import read_table, write_rows
from ninefold.score import by_present_keys

METRICS = "metrics.jsonl"
MAX_BYTES = 1 << 28  # bytes of a file that is read
MAX_EVALUATIONS = 10_000  # evaluations of a run


NAMES = [field.name for field in fields(Point)]


def read_metrics(folder: Path, runs: Sequence[str]) -> list[Point]:
    """Return the evaluations in the run folders `runs`, which are relative to `folder`."""
    return [point for run in runs for point in _evaluations(folder / run / METRICS, run)]


def _evaluations(path: Path, run: str) -> list[Point]:
    found: list[Point] = []
    names = {"score": "test_score", "loss": "test_loss"}
    try:
        for line in lines(path, MAX_BYTES):
            if b'"test_' in line:
                with suppress(ValueError, RecursionError, AttributeError, msgspec.MsgspecError):
                    said = by_present_keys(json.loads(line))
                    found.append(_point({n: said.get(names.get(n, n)) for n in NAMES}, run))
    except OSError:
        return []
    return found[:MAX_EVALUATIONS]


def _point(values: Mapping[str, Any], run: str | None) -> Point:
    """An evaluation of anybody's. Raises ValueError or ValidationError if it is no valid one."""
    point = msgspec.convert({**values, "folder": run}, Point, strict=False)
    numbers = (point.epoch, point.step, point.seconds, point.score, point.loss)
    if any(number is not None and finite(number) is None for number in numbers):
        raise ValueError("a number in it was not measured")
    return point


def write_curves(path: Path, points: Iterable[Point]) -> None:
    """Write curves.csv, in the order given."""
    write_rows(path, NAMES, ([getattr(point, name) for name in NAMES] for point in points))


def read_curves(path: Path) -> list[Point]:
    """Read curves.csv, empty if there is no such file; ConfigError if it cannot be read."""
    return read_table(path, _of_row)


def _of_row(texts: Mapping[str, str]) -> Point:
    row = by_present_keys(texts)
    return _point({name: row[name] or None for name in NAMES}, row["folder"])
