"""Reads runs from run folders and from runs.csv, which anybody may have written, and writes it."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import fields
from pathlib import Path
from typing import Any

import msgspec

from ninefold.answer.runs import MAX_NAME_CHARS, MAX_NUMBER, Run
from ninefold.config.rules import NAME
from ninefold.errors import ConfigError, one_line
from ninefold.report.data.csv_files import RESTORE, read_table, text_of, write_rows
from ninefold.result import TURN_COLUMNS, Number, Result, in_columns
from ninefold.score import PHASES, by_present_keys
from ninefold.tournament.taken import TakenTurn

NAMES = (
    *("status", "study", "dataset", "model", "parallel", "amp", "dtype"),
    *("memory_format", "scaling"),
)
NO_COLUMNS = ("version", "exit_code", "environment")  # fields that runs.csv does not have
LEFT_OUT = "turn_left_out"  # the column of why turns do not count, empty if all do


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
    """Return the run of a row of runs.csv. Raises ValueError or ValidationError."""
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
    return _checked(msgspec.convert(found, Run), found)


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


def write_csv(path: Path, runs: Iterable[Run]) -> None:
    """Write runs.csv; the times of timing runs are those of the turns that count."""
    rows = (
        {**vars(run), "train_seconds": run.counted_seconds, "examples_per_second": run.throughput}
        for run in runs
    )
    write_rows(path, COLUMNS, (row_of(row).values() for row in rows))


def read_csv(path: Path) -> list[Run]:
    """Read runs.csv; ConfigError when it holds no run or a value that cannot be read."""
    if not (runs := read_table(path, run_of)):
        raise ConfigError("runs.csv", path, "holds no run", "one row per run", RESTORE)
    return runs
