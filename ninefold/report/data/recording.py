"""What is recorded of a sweep: runs.csv, curves.csv, numerics.csv and environment.json.

All else in a report follows from these four, so that a recorded sitting can be reported again
without its run folders. Nothing in them names the machine.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ninefold.errors import ConfigError
from ninefold.files import write_json
from ninefold.report.answer.published import Published, read_published
from ninefold.report.data.cells import Group
from ninefold.report.data.curves import Point, read_curves, read_metrics, write_curves
from ninefold.report.data.environment import gather, read_json
from ninefold.report.data.folders import read_results, read_sweep, studies_below
from ninefold.report.data.overlay import overlays
from ninefold.report.data.privacy import Scrubber
from ninefold.report.data.rounds import join
from ninefold.report.data.runs import Run, read_csv, rows_of, run_of, write_csv
from ninefold.report.stats import numerics

RECORDED = ("runs.csv", "curves.csv", "numerics.csv", "environment.json")


@dataclass(frozen=True)
class Recording:
    """What was recorded of a sweep."""

    runs: Sequence[Run]
    environment: Mapping[str, Any]
    points: Sequence[Point]
    numerics: Sequence[numerics.Row]

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
        return numerics.summarize(self.numerics, group.runs)


def find_recording(folder: Path) -> tuple[Recording, Path]:
    """Return the sitting in a folder and where its report is: inside a sweep's folder in
    `report/`, of a recorded sitting in the folder itself. ConfigError where there is neither.
    """
    if not folder.is_dir():
        raise ConfigError(
            "folder", folder, "there is no such folder",
            "the folder of a sweep, of a run or of a recorded sitting",
            "give the folder that the sweep wrote, below outputs/",
        )  # fmt: skip
    gathered = gather_recording(folder)
    if gathered is None and not (folder / "runs.csv").is_file():
        raise ConfigError(
            "folder", folder, "holds no run",
            "folders with a result.json at any depth, or runs.csv",
            "run a sweep first, or give the folder that the sweep wrote, below outputs/",
        )  # fmt: skip
    return (gathered, folder / "report") if gathered else (read_recording(folder), folder)


def gather_recording(folder: Path) -> Recording | None:
    """Return what there is to record of a sweep's folder, None where it holds no run.

    ConfigError where it holds studies and is none: which of their runs count they say themselves.
    """
    if studies := studies_below(folder):
        raise ConfigError(
            "folder", folder, "it holds studies and is none itself", "the folder of one study",
            f"give one of its {len(studies)}, such as {studies[-1]}",
        )  # fmt: skip
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
    return Recording(
        runs,
        {
            **gather(runs, [scrubber.value(each) for each in environments], sweep),
            "report_folder": _relative(folder / "report"),
            "overlays": scrubber.value(overlays(folder, runs)),
        },
        read_metrics(folder, [run.folder for run in runs]),
        numerics.rows(folder, runs),
    )


def read_runs(folder: Path) -> list[Run]:
    """Return the runs that a sweep's folder holds so far."""
    return [run_of(row) for row in rows_of(join(read_results(folder), read_sweep(folder)))]


def record(recording: Recording, target: Path) -> None:
    """Write the recorded files into `target`."""
    target.mkdir(exist_ok=True)
    write_csv(target / "runs.csv", recording.runs)
    write_curves(target / "curves.csv", recording.points)
    if recording.numerics:
        numerics.write_csv(target / "numerics.csv", recording.numerics)
    else:
        (target / "numerics.csv").unlink(missing_ok=True)
    write_json(target / "environment.json", recording.environment)


def read_recording(target: Path) -> Recording:
    """Return a recorded sitting. ConfigError when a file is missing or damaged."""
    environment = read_json(target / "environment.json")
    if here := _relative(target):  # it may have been copied from where it was recorded
        environment["report_folder"] = here
    return Recording(
        read_csv(target / "runs.csv"), environment,
        read_curves(target / "curves.csv"), numerics.read_csv(target / "numerics.csv"),
    )  # fmt: skip


def _relative(folder: Path) -> str | None:
    """A folder as the commands below it are typed, None where that would tell of the machine."""
    try:
        return folder.resolve().relative_to(Path.cwd().resolve()).as_posix()
    except ValueError:
        return None


def _environment(result: Mapping[str, Any]) -> dict[str, Any]:
    environment = result.get("environment")
    if not isinstance(environment, dict):
        return {}
    versions = environment.get("versions")
    rest = {key: value for key, value in environment.items() if key != "versions"}
    return {**versions, **rest} if isinstance(versions, dict) else rest
