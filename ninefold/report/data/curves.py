"""Learning curves: the evaluations of each run during training."""

from __future__ import annotations

import json
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

import msgspec

from ninefold.answer.runs import Point
from ninefold.files import lines
from ninefold.report.data.csv_files import names_of, record
from ninefold.score import by_present_keys

METRICS = "metrics.jsonl"
MAX_BYTES = 1 << 28  # bytes of a file that is read
MAX_EVALUATIONS = 10_000  # evaluations of a run


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
                    values = {n: said.get(names.get(n, n)) for n in names_of(Point)}
                    found.append(record(Point, {**values, "folder": run}))
    except OSError:
        return []
    return found[:MAX_EVALUATIONS]
