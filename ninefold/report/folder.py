"""Writes and reads the report of a folder: report.html, report.md and their data."""

from __future__ import annotations

import shlex
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import NamedTuple

from ninefold.answer.answer import Answer
from ninefold.answer.screen import NOTES
from ninefold.errors import ConfigError, Failure, ResourceError, error_text, memory_failure
from ninefold.files import write_text
from ninefold.places import IN_A_CLONE, ROOT, typed_as
from ninefold.report.builder import answer_of, build
from ninefold.report.data.recording import RECORDED, Recording, find_recording, record
from ninefold.report.render.console import console_text
from ninefold.report.render.templates import figure, page, report_text
from ninefold.report.tree import Report, write_report

DERIVED = ("figure.svg", "report.json", "report.md", "report.html")


class Written(NamedTuple):
    """text: what the console shows of a report. answer: with the command that it shows last."""

    text: str
    answer: Answer


def write(
    folder: Path, own: bool = False, most: int | None = NOTES, resumes: bool = False
) -> Written:
    """Write the report of a folder.

    own: whether this command made the study, whose words are then all repeated. most: how many
    notes are shown; None: all. resumes: whether the caller says how the study goes on, so that no
    command that makes it surer is shown.

    The report of a study's folder is written to `report/` inside it. In a recording, which holds
    runs.csv and no run folders, the files that follow from the recorded ones are rebuilt in place.
    ConfigError when the folder does not exist or is neither, ResourceError when the report cannot
    be written.
    """
    with _making_sense(folder):
        recording, target = find_recording(folder, own)
        gathered = target != folder
        try:
            _forget_links(target, recording=gathered)
            if gathered:
                record(recording, target)
            return _derive(recording, target, most, resumes)
        except OSError as problem:
            wrong = f"the report cannot be written ({problem.strerror or problem})"
            do = "free space or copy the folder elsewhere"
            raise ResourceError(
                "folder", folder, wrong, "a folder that can be written to", do
            ) from problem


@contextmanager
def _making_sense(folder: Path) -> Iterator[None]:
    """Raise ConfigError for what is recorded in a folder if no report can be made of it.

    Anybody may have written it, and any value in it may be of any kind.
    """
    try:
        yield
    except (Failure, OSError):
        raise
    except Exception as problem:
        wrong = f"no report can be made of what it holds ({error_text(problem)}); files as a run "
        wrong += "or a report wrote them"
        do = "if nobody has changed them, please report it with this folder"
        raise memory_failure(problem, "a report was being made") or ConfigError(
            "folder", folder, wrong, "restore them", do
        ) from problem


def place(folder: Path) -> Path:
    """Return the path of the report.html that was written for a folder."""
    target = folder / "report" if (folder / "report").is_dir() else folder
    return target / "report.html"


@dataclass(frozen=True)
class Read:
    """What the folder of a study or a recording says, as objects; nothing is written.

    report: with the command that trains, with its folders. recording: every run.
    picture: the speed of the configurations as SVG; None where no time is known.
    """

    report: Report
    recording: Recording
    picture: str | None


def read(folder: Path, typed: str, own: bool = False) -> Read:
    """Return the report of a folder; own, errors: as `write`. typed: printed for `train`."""
    with _making_sense(folder):
        recording, _ = find_recording(folder, own)
        found = recording.facts
        report = build(recording, found, typed)
        return Read(report, recording, figure(report))


def _forget_links(target: Path, recording: bool) -> None:
    """Remove symbolic links where the report will be: writing would follow them elsewhere."""
    files = [target / name for name in (*DERIVED, *(RECORDED if recording else ()))]
    for path in (target, *files, *(path.with_name(f".{path.name}.tmp") for path in files)):
        if path.is_symlink() and (recording or path != target):
            path.unlink()


def _derive(recording: Recording, target: Path, most: int | None, resumes: bool) -> Written:
    """Write the files that follow from the recorded ones; see `write`.

    Only the console shows the words of commands with all folders.
    """
    folder, found = recording.folder, recording.facts
    here = None if folder is None or folder.is_absolute() else folder  # another's path is private
    report = build(replace(recording, as_typed=None, folder=here), found)
    write_text(target / "report.md", report_text(report))
    write_report(target / "report.json", report)
    (target / "figure.svg").unlink(missing_ok=True)  # of an earlier report
    if picture := figure(report):
        write_text(target / "figure.svg", picture)
    write_text(target / "report.html", page(report))
    answer, _ = answer_of(recording, found, typed_in(Path.cwd()))
    answer = replace(answer, surer=None) if resumes else answer
    shown = console_text(replace(report, answer=answer), target / "report.html", most)
    return Written(shown, answer)


def typed_in(folder: Path) -> str:
    """What the user of this process types for `train` in `folder`, for a shell."""
    typed, ours = typed_as("train"), ROOT / "train.py"
    if typed != IN_A_CLONE:
        return typed
    with suppress(OSError):
        if (folder / "train.py").samefile(ours):
            return typed
    return f"python {shlex.quote(str(ours))}"
