"""A recording of a sweep: the files from which its report can be rebuilt without its run folders.

They are runs.csv, curves.csv, numerics.csv and environment.json. Nothing in them identifies the
machine.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ninefold.answer.gather import facts_of_study
from ninefold.answer.next_steps import NextSteps
from ninefold.answer.numerics import Row, rows
from ninefold.answer.rounds import count_turns, placed
from ninefold.answer.runs import Point, Run
from ninefold.answer.study_facts import StudyFacts
from ninefold.errors import ConfigError
from ninefold.files import write_json
from ninefold.report.data.csv_files import read_records, write_records
from ninefold.report.data.curves import read_metrics
from ninefold.report.data.environment import gather, read_environment
from ninefold.report.data.folders import read_results, read_sweep, studies_below
from ninefold.report.data.privacy import Scrubber
from ninefold.report.data.runs import NAMES, read_csv, run_of_result, write_csv
from ninefold.study_record import StudyRecord

RECORDED = ("runs.csv", "curves.csv", "numerics.csv", "environment.json")


@dataclass(frozen=True)
class Recording:
    """What was recorded of a sweep.

    runs: in the order of runs.csv
    environment: the content of environment.json
    points: the evaluations during training
    numerics: the comparison of the first steps, the rows of numerics.csv
    folder: of the study, if it is there: its configuration can be trained with
    own: whether this command made it, and may repeat all words of it
    as_typed: the content of sweep.json with the folders that are not recorded; None where they may
        not be repeated
    """

    runs: Sequence[Run]
    environment: Mapping[str, Any]
    points: Sequence[Point]
    numerics: Sequence[Row]
    folder: Path | None = None
    own: bool = False
    as_typed: StudyRecord | None = None

    @functools.cached_property
    def sweep(self) -> StudyRecord:
        """The content of sweep.json."""
        return StudyRecord.of(self.environment.get("sweep") or {})

    @functools.cached_property
    def facts(self) -> list[StudyFacts]:
        """The facts of each group of runs, the largest first."""
        return facts_of_study(self.runs, self.sweep, self.numerics)

    @property
    def next_steps(self) -> NextSteps:
        """What its study may measure further."""
        return NextSteps(self.sweep, str(self.folder or ""), self.own and self.sweep.trust)


def find_recording(folder: Path, own: bool = False) -> tuple[Recording, Path]:
    """Return the recording of a folder and the folder of its report. own: see Recording.

    That is `report/` inside a sweep's folder, and the folder itself if it holds recorded files.
    ConfigError if it holds neither runs nor recorded files, or studies: each of these says by
    itself which of its runs count.
    """
    written = "the folder that the sweep wrote, below outputs/"
    if not folder.is_dir():
        allowed = "the folder of a sweep, a run or a recording"
        raise ConfigError("folder", folder, "there is no such folder", allowed, f"give {written}")
    if studies := studies_below(folder):
        wrong, allowed = "it holds studies and is none itself", "the folder of one study"
        do = f"give one of its {len(studies)}, such as {studies[-1]}"
        raise ConfigError("folder", folder, wrong, allowed, do)
    if results := _with_hosts(read_results(folder)):
        return _gathered(folder, results, own), folder / "report"
    if not (folder / "runs.csv").is_file():
        allowed = "folders with a result.json at any depth, or runs.csv"
        do = f"run a sweep first, or give {written}"
        raise ConfigError("folder", folder, "holds no run", allowed, do)
    return read_recording(folder), folder


def _gathered(folder: Path, results: Sequence[Mapping[str, Any]], own: bool) -> Recording:
    """The recording of a sweep's folder, by the results of its runs."""
    environments = [_environment(result) for result in results]
    # Names of models and the like are published, even where a host has the same name.
    names = {"cpu", *(str(result.get(name)) for result in results for name in NAMES)}
    scrubber = Scrubber(
        hostnames={
            *(str(environment.get("hostname") or "") for environment in environments),
            *(name for result in results for name in _names_of_hosts(result)),
        }
        - names,
        folders=(folder.resolve(), Path.cwd(), Path.home()),
        differ=(text for result in results for text in result.get("overrides") or ()),
    )
    sweep = scrubber.value(found := read_sweep(folder))
    study = StudyRecord.of(sweep)
    runs = placed([run_of_result(scrubber.value(result)) for result in results], study)
    environment = gather(runs, [scrubber.value(each) for each in environments], sweep)
    place = folder.absolute()
    with suppress(ValueError):  # it is outside of the current folder
        place = folder.resolve().relative_to(Path.cwd().resolve())
    return Recording(
        runs,
        environment,
        read_metrics(folder, [run.folder for run in runs]),
        rows(folder, runs),
        place,
        own,
        StudyRecord.of(found) if own else None,
    )


def read_runs(folder: Path) -> tuple[list[Run], StudyRecord]:
    """Return the runs that a sweep's folder holds so far, and its sweep.json."""
    sweep = StudyRecord.of(read_sweep(folder))
    return placed(map(run_of_result, _with_hosts(read_results(folder))), sweep), sweep


def record(recording: Recording, target: Path) -> None:
    """Write the recorded files into `target`."""
    target.mkdir(exist_ok=True)
    write_csv(target / "runs.csv", recording.runs)
    write_records(target / "curves.csv", Point, recording.points)
    (target / "numerics.csv").unlink(missing_ok=True)
    if recording.numerics:
        write_records(target / "numerics.csv", Row, recording.numerics)
    write_json(target / "environment.json", recording.environment)


def read_recording(target: Path) -> Recording:
    """Read the recorded files in `target`. ConfigError if one is missing or damaged."""
    environment = read_environment(target / "environment.json")
    runs = read_csv(target / "runs.csv")
    count_turns(runs)
    points = read_records(target / "curves.csv", Point)
    return Recording(runs, environment, points, read_records(target / "numerics.csv", Row))


def _names_of_hosts(result: Mapping[str, Any]) -> list[str]:
    """Return the names of the hosts that a result.json says its run was made on, sorted."""
    environment = result.get("environment")
    if not isinstance(environment, Mapping):
        return []
    hosts = environment.get("hosts")
    listed = hosts if isinstance(hosts, list) else []
    said = [host.get("name") for host in listed if isinstance(host, Mapping)]
    return sorted({name for name in said if isinstance(name, str) and name})


def _with_hosts(results: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Return the results with `on_hosts`, the numbers of their hosts, from 1.

    A report publishes these instead of names: which runs had the same hosts, and nothing else.
    """
    numbers: dict[str, int] = {}
    found = []
    for result in results:
        own = sorted(numbers.setdefault(name, len(numbers) + 1) for name in _names_of_hosts(result))
        found.append({**result, "on_hosts": own})
    return found


def _environment(result: Mapping[str, Any]) -> dict[str, Any]:
    environment = result.get("environment")
    if not isinstance(environment, dict):
        return {}
    versions = environment.get("versions")
    rest = {key: value for key, value in environment.items() if key != "versions"}
    if isinstance(hosts := rest.get("hosts"), list):
        rest["hosts"] = [
            {key: value for key, value in host.items() if key not in ("name", "ranks")}
            for host in hosts
            if isinstance(host, dict)
        ]
    return {**versions, **rest} if isinstance(versions, dict) else rest
