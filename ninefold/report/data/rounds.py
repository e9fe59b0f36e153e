"""Joins what a study says of its rounds (sweep.json) to the runs, and says which of them count."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from ninefold.report.data.runs import Run, finite
from ninefold.report.numbers import MISSING

COLUMNS = ("round", "attempt", "drifted", "counted", "part")
STOPPED = ("preempted", "unfinished")  # how a run ended that going on with a study would finish
SUPERSEDED = "superseded/"  # where a study puts away runs that it does again
_NOT_COUNTED = {"round": None, "attempt": None, "drifted": None, "counted": False, "part": None}


def join(results: Sequence[Mapping[str, Any]], sweep: Mapping[str, Any]) -> list[dict[str, Any]]:
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


def rounds_of(sweep: Mapping[str, Any], part: int | None = None) -> list[dict[str, Any]]:
    """Return the rounds that a study recorded, all or a part's; none where none can be read."""
    rounds = sweep.get("rounds")
    return [
        entry
        for entry in (rounds if isinstance(rounds, list) else [])
        if isinstance(entry, dict) and isinstance(entry.get("runs"), list)
        and part in (None, entry.get("part") or 0)
    ]  # fmt: skip


def planned_cells(sweep: Mapping[str, Any]) -> list[str]:
    """Return the cells that a study was to run; none where it did not sweep both axes."""
    swept = _swept(sweep)
    return [
        f"{parallel}-{amp}"
        for parallel in swept.get("parallel", [])
        for amp in swept.get("amp", [])
    ]


def name_of(run: Run, sweep: Mapping[str, Any]) -> str | None:
    """Return what a study calls the cell of a run, the values that it swept included.

    None where the run does not say which of them it had.
    """
    known = {"dataset": run.dataset, "model": run.model, "batch_size": run.batch_size,
             "epochs": None if run.to_train is None else f"{run.to_train:g}"}  # fmt: skip
    told = {*run.settings, *(f"{key}={value}" for key, value in known.items())}
    words = [run.cell]
    for key, values in _swept(sweep).items():
        if key not in ("parallel", "amp"):
            found = [text for value in values if (text := f"{key}={value}") in told]
            if not found:
                return None
            words += found
    return " ".join(words)


def is_unfinished(sweep: Mapping[str, Any], runs: Sequence[Run]) -> bool:
    """Whether a study has yet to make runs of its rounds, or to end some that it began."""
    rounds = rounds_of(sweep)
    entries = [entry for entry in rounds if entry.get("counted") or entry is rounds[-1]]
    cells = math.prod(map(len, _swept(sweep).values()))
    names = {folder for entry in entries for folder in entry["runs"] if isinstance(folder, str)}
    return (
        _rounds_are_missing(sweep, rounds)
        or any(len(entry["runs"]) < cells for entry in entries)
        or any(run.folder in names and run.status in STOPPED for run in runs)
    )


def _rounds_are_missing(sweep: Mapping[str, Any], rounds: Sequence[Mapping[str, Any]]) -> bool:
    planned = finite(sweep.get("planned_rounds"))
    ends_when_settled = _settings(sweep).get("repeats") == "auto"
    begun = {str(entry.get("round")) for entry in rounds}
    return planned is not None and not ends_when_settled and 0 < len(begun) < planned


def _swept(sweep: Mapping[str, Any]) -> dict[str, list[Any]]:
    """The keys that a study gave several values, and those."""
    swept = sweep.get("swept")
    found = swept.items() if isinstance(swept, dict) else ()
    return {key: values for key, values in found if isinstance(values, list) and key != "seed"}


def drift_allowed(sweep: Mapping[str, Any]) -> float | None:
    """Return the share above which a round has drifted, None where no study says one."""
    allowed = finite(_settings(sweep).get("drift"))
    return allowed if allowed is not None and allowed > 0 else None


def _settings(sweep: Mapping[str, Any]) -> Mapping[str, Any]:
    """The section `study` of a study's settings."""
    settings = sweep.get("settings")
    study = settings.get("study") if isinstance(settings, dict) else None
    return study if isinstance(study, dict) else {}


def round_number(entry: Mapping[str, Any]) -> str:
    """Return the number of a round, or of a run's, as people count: from 1. 3.2 is its second try.

    What is recorded counts from 0.
    """
    number, attempt = entry.get("round"), entry.get("attempt")
    again = f".{attempt + 1}" if isinstance(attempt, int) and attempt else ""
    return f"{number + 1}{again}" if isinstance(number, int) else MISSING


def why_not(run: Run, sweep: Mapping[str, Any]) -> str | None:
    """Return why a run enters no figure, or None where it counts."""
    if run.counts:
        return None
    if run.folder == sweep.get("burn_in"):
        return "the burn-in: it warms the machine up"
    if _put_away(run.folder, sweep):
        return "superseded: the study did it again"
    if run.drifted:
        return "the machine drifted in this round, which was repeated"
    return "it is in no round that counts"


def _put_away(folder: str, sweep: Mapping[str, Any]) -> bool:
    """Whether a run is the burn-in, or one that was done again."""
    superseded = sweep.get("superseded")
    listed = isinstance(superseded, list) and folder in superseded
    return listed or folder.startswith(SUPERSEDED) or folder == sweep.get("burn_in")
