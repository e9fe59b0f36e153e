"""What is recorded of a sweep: runs.csv, curves.csv, numerics.csv and environment.json.

All else in a report follows from these four, so that a recorded sitting can be reported again
without its run folders. Nothing in them names the machine.
"""

from __future__ import annotations

import csv
import json
import math
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType
from typing import Any

from ninefold.errors import ConfigError
from ninefold.report.cells import Group
from ninefold.report.curves import Point, read_curves, read_metrics, write_curves
from ninefold.report.environment import gather, read_json
from ninefold.report.folders import read_results, read_sweep
from ninefold.report.overlay import overlays
from ninefold.report.privacy import Scrubber
from ninefold.report.published import Published, read_published
from ninefold.report.rounds import join
from ninefold.report.runs import Run, read_csv, rows_of, run_of, write_csv
from ninefold.result import write_json

RECORDED = ("runs.csv", "curves.csv", "numerics.csv", "environment.json")


@dataclass(frozen=True)
class Sitting:
    """What was recorded of a sweep."""

    runs: Sequence[Run]
    environment: Mapping[str, Any]
    points: Sequence[Point]
    numerics: Sequence[Mapping[str, Any]]

    @property
    def sweep(self) -> Mapping[str, Any]:
        """The content of sweep.json, empty where there was none."""
        sweep = self.environment.get("sweep")
        return sweep if isinstance(sweep, dict) else {}

    @property
    def published(self) -> list[Published]:
        """The table that was published for the study, empty where there is none."""
        return read_published(self.environment)

    def compare_numerics(self, group: Group) -> dict[str, Any] | None:
        """Return what the first steps of a group's cells come to, None where none were kept."""
        module = _numerics()
        if module is None or not self.numerics:
            return None
        found: dict[str, Any] | None = module.summarize(self.numerics, group.runs)
        return found


def find_sitting(folder: Path) -> tuple[Sitting, Path]:
    """Return the sitting in a folder and where its report is: inside a sweep's folder in
    `report/`, of a recorded sitting in the folder itself. ConfigError where there is neither.
    """
    if not folder.is_dir():
        raise ConfigError(
            "folder", folder, "there is no such folder",
            "the folder of a sweep, of a run or of a recorded sitting",
            "give the folder that the sweep wrote, below outputs/",
        )  # fmt: skip
    gathered = gather_sitting(folder)
    if gathered is None and not (folder / "runs.csv").is_file():
        raise ConfigError(
            "folder", folder, "holds no run",
            "folders with a result.json at any depth, or runs.csv",
            "run a sweep first, or give the folder that the sweep wrote, below outputs/",
        )  # fmt: skip
    return (gathered, folder / "report") if gathered else (read_sitting(folder), folder)


def gather_sitting(folder: Path) -> Sitting | None:
    """Return what there is to record of a sweep's folder, None where it holds no run."""
    results = read_results(folder)
    if not results:
        return None
    environments = [_environment(result) for result in results]
    scrubber = Scrubber(
        hostnames={str(environment.get("hostname") or "") for environment in environments},
        folders=(folder.resolve(), Path.cwd(), Path.home()),
    )
    sweep = scrubber.value(read_sweep(folder))
    rows = rows_of(join([scrubber.value(result) for result in results], sweep))
    runs = [run_of(row) for row in rows]
    module = _numerics()
    return Sitting(
        runs,
        {
            **gather(runs, [scrubber.value(each) for each in environments], sweep),
            "report_folder": _relative(folder / "report"),
            "overlays": scrubber.value(overlays(folder, runs)),
        },
        read_metrics(folder, [run.folder for run in runs]),
        [scrubber.value(row) for row in module.rows(folder, runs)] if module else [],
    )


def read_runs(folder: Path) -> list[Run]:
    """Return the runs that a sweep's folder holds so far."""
    return [run_of(row) for row in rows_of(join(read_results(folder), read_sweep(folder)))]


def record(sitting: Sitting, target: Path) -> None:
    """Write the recorded files into `target`."""
    target.mkdir(exist_ok=True)
    write_csv(target / "runs.csv", sitting.runs)
    write_curves(target / "curves.csv", sitting.points)
    _write_rows(target / "numerics.csv", sitting.numerics)
    write_json(target / "environment.json", sitting.environment)


def read_sitting(target: Path) -> Sitting:
    """Return a recorded sitting. ConfigError when a file is missing or damaged."""
    return Sitting(
        read_csv(target / "runs.csv"), read_json(target / "environment.json"),
        read_curves(target / "curves.csv"), _read_rows(target / "numerics.csv"),
    )  # fmt: skip


def _relative(folder: Path) -> str | None:
    """A folder as the commands below it are typed, None where that would tell of the machine."""
    try:
        return shlex.quote(folder.resolve().relative_to(Path.cwd().resolve()).as_posix())
    except ValueError:
        return None


def _numerics() -> ModuleType | None:
    name = "ninefold.report.numerics"
    return import_module(name) if find_spec(name) else None


def _write_rows(path: Path, rows: Sequence[Mapping[str, Any]]) -> None:
    """Write rows that all have the same keys; no file where there is none."""
    path.unlink(missing_ok=True)
    if not rows:
        return
    with path.open("w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(rows[0])
        for row in rows:
            values = (row.get(name) for name in rows[0])
            writer.writerow(
                "" if value is None else value if isinstance(value, str) else json.dumps(value)
                for value in values
            )  # fmt: skip


def _read_rows(path: Path) -> list[dict[str, Any]]:
    """Return the rows of numerics.csv; none where there is no such file."""
    if not path.is_file():
        return []
    try:
        with path.open(encoding="utf-8", newline="") as file:
            return [
                {name: text if name == "folder" else _value(text) for name, text in row.items()}
                for row in csv.DictReader(file)
            ]
    except (TypeError, ValueError, csv.Error) as problem:
        raise ConfigError(
            "numerics.csv", path, f"it cannot be read ({problem})",
            "the file that the report wrote", "restore the file from version control",
        ) from None  # fmt: skip


def _value(text: str) -> float | bool | None:
    """Return the number or truth that a text stands for, None for none that can be compared."""
    value = json.loads(text) if text else None
    if value is not None and not isinstance(value, bool | int | float):
        raise ValueError(f"{text[:100]!r} is no number")
    return value if value is None or math.isfinite(value) else None


def _environment(result: Mapping[str, Any]) -> dict[str, Any]:
    environment = result.get("environment")
    if not isinstance(environment, dict):
        return {}
    versions = environment.get("versions")
    rest = {key: value for key, value in environment.items() if key != "versions"}
    return {**versions, **rest} if isinstance(versions, dict) else rest
