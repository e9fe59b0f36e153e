"""Messages between a launcher and its workers, as small files in a temporary folder.

rank1.0.json: the failure of a worker, in attempt 0.
stop: the signal that the launcher received.
"""

from __future__ import annotations

from collections.abc import Container
from dataclasses import asdict
from pathlib import Path

from ninefold.errors import KINDS, Failure, FailureReport
from ninefold.files import write_json
from ninefold.signals import failure as ending

STOP = "stop"


def write(folder: Path, rank: int, attempt: int, failure: Failure) -> None:
    """In a worker: write its failure for the launcher."""
    report = FailureReport.of(failure, rank, attempt)
    write_json(folder / f"rank{rank}.{attempt}.json", asdict(report))


def read(folder: Path) -> list[FailureReport]:
    """The failures of all attempts, those of the newest attempt first, then the earliest first."""
    found = [FailureReport.read(path.read_text()) for path in folder.glob("rank*.json")]
    return sorted(found, key=lambda report: (-report.attempt, report.time))


def latest(folder: Path, attempt: int, final: Container[str] = ()) -> list[FailureReport]:
    """The failures of this attempt, earliest first, then the final ones of older attempts.

    final: class names of failures that a restart cannot mend.
    """
    return [r for r in read(folder) if r.attempt == attempt or r.kind in final]


def tell_to_stop(folder: Path, number: int) -> None:
    """In the launcher: make workers that have not started yet exit."""
    (folder / STOP).write_text(str(number))


def final(folder: Path, kinds: Container[str]) -> int | None:
    """The exit code if a starting worker must not run (a signal, or a lasting failure), or None."""
    stop = folder / STOP
    if stop.exists() and (text := stop.read_text()):
        return ending(int(text)).code
    codes = [KINDS[report.kind].code for report in read(folder) if report.kind in kinds]
    return codes[0] if codes else None
