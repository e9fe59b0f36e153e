"""Messages between a launcher and its workers, as small files in a temporary folder.

rank1.0.pid: process id of a worker, in attempt 0.
rank1.0.json: its failure.
stop: the signal that the launcher received.

A worker first registers and then looks for `stop`; the launcher writes `stop` and then looks for
workers: so none is overlooked.
"""

from __future__ import annotations

import os
from collections.abc import Container
from dataclasses import asdict
from pathlib import Path

from ninefold.errors import KINDS, Failure, FailureReport
from ninefold.files import write_json
from ninefold.signals import failure as ending

STOP = "stop"


def register(folder: Path, rank: int, attempt: int) -> None:
    """In a worker: write its process id, to receive signals."""
    (folder / f"rank{rank}.{attempt}.pid").write_text(str(os.getpid()))


def workers(folder: Path, attempt: int | None = None) -> dict[int, int]:
    """Process ids by rank. attempt: None: the latest, after all restarts."""
    attempt = _newest(folder) if attempt is None else attempt
    found = {}
    for path in folder.glob(f"rank*.{attempt}.pid"):
        if text := path.read_text():
            found[int(path.name[4:].partition(".")[0])] = int(text)
    return found


def gone(folder: Path, attempt: int) -> set[int]:
    """The ranks in this attempt whose process has ended."""
    return {rank for rank, process in workers(folder, attempt).items() if not _lives(process)}


def _lives(process: int) -> bool:
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    return True


def write(folder: Path, rank: int, attempt: int, failure: Failure) -> None:
    """In a worker: write its failure for the launcher."""
    report = FailureReport.of(failure, rank, attempt)
    write_json(folder / f"rank{rank}.{attempt}.json", asdict(report))


def read(folder: Path) -> list[FailureReport]:
    """The failures of all attempts, those of the newest attempt first, then the earliest first."""
    found = [FailureReport.read(path.read_text()) for path in folder.glob("rank*.json")]
    return sorted(found, key=lambda report: (-report.attempt, report.time))


def latest(folder: Path, final: Container[str] = ()) -> list[FailureReport]:
    """The failures of the newest attempt, earliest first, then the final ones of older attempts.

    final: class names of failures that a restart cannot mend.
    """
    attempt = _newest(folder)
    return [r for r in read(folder) if r.attempt == attempt or r.kind in final]


def _newest(folder: Path) -> int:
    return max((int(path.name.split(".")[1]) for path in folder.glob("rank*.pid")), default=0)


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
