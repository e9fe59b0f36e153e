"""Joins what a study says of its rounds (sweep.json) to the runs, and says which of them count."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from ninefold.report.runs import Run

COLUMNS = ("round", "attempt", "drifted", "counted", "part")
SUPERSEDED = "superseded/"  # where a study puts away runs that it does again
_NOT_COUNTED = {"round": None, "attempt": None, "drifted": None, "counted": False, "part": None}


def join(
    results: Sequence[Mapping[str, Any]], sweep: Mapping[str, Any] | None
) -> list[dict[str, Any]]:
    """Return the results with round, attempt, drifted, counted and part as the study has them.

    Where a sweep has no rounds, all its runs count but the burn-in and what was superseded. Where
    it has, a run in none of them does not count.
    """
    placed: dict[str, dict[str, Any]] = {}
    for entry in rounds_of(sweep):
        about = {name: entry.get(name) for name in COLUMNS}
        placed.update((folder, about) for folder in entry["runs"] if isinstance(folder, str))
    unplaced = {**_NOT_COUNTED, "counted": False if placed else None}
    return [
        {
            **result,
            **(
                _NOT_COUNTED
                if _put_away(str(result["folder"]), sweep)
                else placed.get(str(result["folder"]), unplaced)
            ),
        }
        for result in results
    ]


def rounds_of(sweep: Mapping[str, Any] | None) -> list[dict[str, Any]]:
    """Return the rounds that a study recorded, none where it has none that can be read."""
    rounds = (sweep or {}).get("rounds")
    return [
        entry
        for entry in (rounds if isinstance(rounds, list) else [])
        if isinstance(entry, dict) and isinstance(entry.get("runs"), list)
    ]


def why_not(run: Run, sweep: Mapping[str, Any] | None) -> str | None:
    """Return why a run enters no figure, or None where it counts."""
    if run.counts:
        return None
    if run.folder == (sweep or {}).get("burn_in"):
        return "the burn-in: it warms the machine up"
    if _put_away(run.folder, sweep):
        return "superseded: the study did it again"
    if run.drifted:
        return "the machine drifted in this round, which was repeated"
    return "it is in no round that counts"


def _put_away(folder: str, sweep: Mapping[str, Any] | None) -> bool:
    """Whether a run is the burn-in, or one that was done again."""
    superseded = (sweep or {}).get("superseded")
    listed = isinstance(superseded, list) and folder in superseded
    return listed or folder.startswith(SUPERSEDED) or folder == (sweep or {}).get("burn_in")
