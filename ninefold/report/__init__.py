"""Turns the run folders of a sweep into tables and a figure."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from ninefold.errors import ConfigError, ResourceError
from ninefold.report.environment import gather, read_json
from ninefold.report.figure import draw
from ninefold.report.folders import read_results, read_sweep
from ninefold.report.privacy import Scrubber
from ninefold.report.published import Published, read_published
from ninefold.report.runs import Run, read_csv, write_csv
from ninefold.report.tables import table
from ninefold.result import write_json

__all__ = ["Published", "Run", "read_csv", "read_json", "read_published", "table", "write"]


def write(folder: Path) -> str:
    """Write the report of a sweep's folder and return table.md's text.

    A sweep's report goes to `report/` inside it. A recorded sitting, which holds runs.csv and no
    run folders, has its table.md and figure.png rebuilt in place. ConfigError when the folder
    does not exist or holds neither, ResourceError when the report cannot be written.
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
    recorded = ("runs.csv", "environment.json", ".environment.json.tmp") if recording else ()
    for name in ("table.md", "figure.png", *recorded):
        if (target / name).is_symlink():
            (target / name).unlink()


def _record(results: list[dict[str, Any]], folder: Path, target: Path) -> None:
    """Write runs.csv and environment.json, with nothing in them that names the machine."""
    environments = [_environment(result) for result in results]
    scrubber = Scrubber(
        hostnames={str(environment.get("hostname") or "") for environment in environments},
        folders=(folder.resolve(), Path.cwd(), Path.home()),
    )
    target.mkdir(exist_ok=True)
    write_csv(target / "runs.csv", [scrubber.value(result) for result in results])
    write_json(
        target / "environment.json",
        gather(
            read_csv(target / "runs.csv"),
            [scrubber.value(environment) for environment in environments],
            scrubber.value(read_sweep(folder)),
        ),
    )


def _rebuild(target: Path) -> str:
    """Write table.md and figure.png from the files that were recorded, and from nothing else."""
    runs = read_csv(target / "runs.csv")
    environment = read_json(target / "environment.json")
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
