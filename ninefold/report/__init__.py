"""Turns the run folders of a sweep into an answer: report.html, report.md and what is below."""

from __future__ import annotations

from pathlib import Path

from ninefold.errors import ResourceError
from ninefold.files import write_json
from ninefold.report.answer.answer import build, evidence_of, overlay_of, winner
from ninefold.report.answer.recommend import Recommendation, is_settled, recommend
from ninefold.report.data.environment import read_json
from ninefold.report.data.overlay import overlay_text
from ninefold.report.data.recording import (
    RECORDED,
    Recording,
    find_recording,
    gather_recording,
    read_recording,
    read_runs,
    record,
)
from ninefold.report.render.figure import draw
from ninefold.report.render.page import page
from ninefold.report.render.tables import table
from ninefold.report.render.text import console_text, progress_text, report_text

__all__ = ["place", "progress_table", "settled", "write"]

OVERLAY = Path("experiments") / "recommended.yaml"  # a folder that --config-dir takes
DERIVED = ("table.md", "figure.png", "report.json", "report.md", "report.html", str(OVERLAY))


def write(folder: Path) -> str:
    """Write the report of a sweep's folder and return what the console shows of it.

    A sweep's report goes to `report/` inside it. A recorded sitting, which holds runs.csv and no
    run folders, has what follows from its recorded files rebuilt in place. ConfigError when the
    folder does not exist or holds neither, ResourceError when the report cannot be written.
    """
    recording, target = find_recording(folder)
    gathered = target != folder
    try:
        _forget_links(target, recording=gathered)
        if gathered:
            record(recording, target)
        return _derive(read_recording(target), target)
    except OSError as problem:
        raise ResourceError(
            "folder", folder, f"the report cannot be written ({problem.strerror or problem})",
            "a folder that can be written to", "free space or copy the sweep elsewhere",
        ) from problem  # fmt: skip


def place(folder: Path) -> Path:
    """Return the page of a report that was written."""
    target = folder / "report" if (folder / "report").is_dir() else folder
    return target / "report.html"


def settled(folder: Path) -> bool:
    """Return whether more rounds of a sweep's folder could not change what it recommends."""
    recording = gather_recording(folder)
    found = evidence_of(recording) if recording else []
    return bool(found) and is_settled(recommend(found[0])[0])


def progress_table(folder: Path) -> str:
    """Return the tables of seconds per epoch and accuracy of the runs that a sweep has so far."""
    return progress_text(read_runs(folder))


def _forget_links(target: Path, recording: bool) -> None:
    """Remove links from where the report will be: writing would follow them out of the folder."""
    folders = [target, target / OVERLAY.parent] if recording else [target / OVERLAY.parent]
    files = [target / name for name in (*DERIVED, *(RECORDED if recording else ()))]
    for path in (*folders, *files, *(path.with_name(f".{path.name}.tmp") for path in files)):
        if path.is_symlink():
            path.unlink()


def _derive(recording: Recording, target: Path) -> str:
    """Write what follows from the files that were recorded, and from nothing else."""
    found = evidence_of(recording)
    goals = recommend(found[0]) if found else []
    report = build(recording, found, goals)
    tables = table(recording.runs, recording.environment, recording.published)
    _write_text(target / "table.md", tables)
    _write_text(target / "report.md", report_text(report, tables))
    write_json(target / "report.json", report)
    draw(target / "figure.png", recording.runs, recording.environment)
    _write_overlay(recording, winner(goals), report["answer"]["train"], target / OVERLAY)
    _write_text(target / "report.html", page(read_json(target / "report.json")))
    return console_text(report, recording.runs)


def _write_overlay(
    recording: Recording, best: Recommendation | None, command: str | None, path: Path
) -> None:
    """Write recommended.yaml, or none where nothing can be recommended."""
    text = None
    if best and command and (overlay := overlay_of(recording, best)):
        why = [f"{best.goal.name.capitalize()}: {best.sentence}", *best.reasons]
        text = overlay_text(overlay, why, command)
    path.unlink(missing_ok=True)
    if text:
        path.parent.mkdir(exist_ok=True)
        _write_text(path, text)


def _write_text(path: Path, text: str) -> None:
    path.write_text(text, encoding="utf-8", newline="\n")
