"""Turns the run folders of a sweep into an answer, tables and a figure."""

from __future__ import annotations

import csv
from collections.abc import Mapping, Sequence
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from ninefold.errors import ConfigError, ResourceError
from ninefold.report.curves import read_curves, read_metrics, write_curves
from ninefold.report.environment import gather, read_json
from ninefold.report.figure import draw
from ninefold.report.folders import read_results, read_sweep
from ninefold.report.privacy import Scrubber
from ninefold.report.published import Published, read_published
from ninefold.report.rounds import join
from ninefold.report.runs import Run, read_csv, write_csv
from ninefold.report.tables import table
from ninefold.result import write_json

__all__ = ["Published", "Run", "read_csv", "read_json", "read_published", "table", "write"]

# What a sitting is; all else in a report follows from these.
RECORDED = ("runs.csv", "curves.csv", "numerics.csv", "environment.json")
DERIVED = ("table.md", "figure.png")


def write(folder: Path) -> str:
    """Write the report of a sweep's folder and return table.md's text.

    A sweep's report goes to `report/` inside it. A recorded sitting, which holds runs.csv and no
    run folders, has what follows from its recorded files rebuilt in place. ConfigError when the
    folder does not exist or holds neither, ResourceError when the report cannot be written.
    """
    if not folder.is_dir():
        raise ConfigError(
            "folder", folder, "there is no such folder",
            "the folder of a sweep, of a run or of a recorded sitting",
            "give the folder that the sweep wrote, below outputs/",
        )  # fmt: skip
    results = read_results(folder)
    recorded = (folder / "runs.csv").is_file()
    if not results and not recorded:
        raise ConfigError(
            "folder", folder, "holds no run",
            "folders with a result.json at any depth, or runs.csv",
            "run a sweep first, or give the folder that the sweep wrote, below outputs/",
        )  # fmt: skip
    target = folder / "report" if results else folder
    try:
        _forget_links(target, recording=bool(results))
        if results:
            _record(results, folder, target)
        return _rebuild(target)
    except OSError as problem:
        raise ResourceError(
            "folder", folder, f"the report cannot be written ({problem.strerror or problem})",
            "a folder that can be written to", "free space or copy the sweep elsewhere",
        ) from problem  # fmt: skip


def _forget_links(target: Path, recording: bool) -> None:
    """Remove links from where the report will be: writing would follow them out of the folder."""
    if recording and target.is_symlink():
        target.unlink()
    for name in (*DERIVED, *(RECORDED if recording else ())):
        for path in (target / name, target / f".{name}.tmp"):
            if path.is_symlink():
                path.unlink()


def _record(results: list[dict[str, Any]], folder: Path, target: Path) -> None:
    """Write the recorded files, with nothing in them that names the machine."""
    environments = [_environment(result) for result in results]
    scrubber = Scrubber(
        hostnames={str(environment.get("hostname") or "") for environment in environments},
        folders=(folder.resolve(), Path.cwd(), Path.home()),
    )
    sweep = scrubber.value(read_sweep(folder))
    target.mkdir(exist_ok=True)
    write_csv(target / "runs.csv", join([scrubber.value(result) for result in results], sweep))
    runs = read_csv(target / "runs.csv")
    write_curves(target / "curves.csv", read_metrics(folder, [run.folder for run in runs]))
    _write_rows(target / "numerics.csv", _compare_numerics(folder, runs))
    write_json(
        target / "environment.json",
        gather(runs, [scrubber.value(environment) for environment in environments], sweep),
    )


def _compare_numerics(folder: Path, runs: Sequence[Run]) -> list[dict[str, Any]]:
    if find_spec("ninefold.report.numerics") is None:
        return []
    rows: list[dict[str, Any]] = import_module("ninefold.report.numerics").rows(folder, runs)
    return rows


def _write_rows(path: Path, rows: Sequence[Mapping[str, Any]]) -> None:
    """Write a table of rows that all have the same keys; no file where there is none."""
    path.unlink(missing_ok=True)
    if not rows:
        return
    with path.open("w", encoding="utf-8", newline="") as file:
        writer = csv.DictWriter(file, list(rows[0]), lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)


def _rebuild(target: Path) -> str:
    """Write what follows from the files that were recorded, and from nothing else."""
    runs = read_csv(target / "runs.csv")
    environment = read_json(target / "environment.json")
    read_curves(target / "curves.csv")
    text = table(runs, environment, read_published(environment))
    (target / "table.md").write_text(text, encoding="utf-8", newline="\n")
    draw(target / "figure.png", runs, environment)
    return text


def _environment(result: dict[str, Any]) -> dict[str, Any]:
    environment = result.get("environment")
    if not isinstance(environment, dict):
        return {}
    versions = environment.get("versions")
    rest = {key: value for key, value in environment.items() if key != "versions"}
    return {**versions, **rest} if isinstance(versions, dict) else rest
