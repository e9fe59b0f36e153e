"""What a study recorded in sweep.json: its cells, its rounds, and which runs count."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Any

from ninefold.report.data.runs import Run, finite
from ninefold.report.data.scaling import processes_are_swept, scaled
from ninefold.report.numbers import MISSING
from ninefold.result import PROCESSES, TIMING, strategy_name

COLUMNS = ("round", "attempt", "drifted", "counted", "part")
STOPPED = ("preempted", "unfinished")  # the status of runs that resuming the study would complete
SUPERSEDED = "superseded/"  # where a study keeps runs that it repeated
MOST_CELLS = 10_000  # more were never run
_NOT_COUNTED = {**dict.fromkeys(COLUMNS), "counted": False}


def join(results: Sequence[Mapping[str, Any]], sweep: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return the results with the round, attempt, drifted, counted and part of their rounds.

    Where the study swept the processes, also with what `scaled` adds.

    In a sweep without rounds, all runs count except the burn-in and superseded ones. In one with
    rounds, a run that is in none of them does not count. A timing run that has no turns, as it
    failed, gets turns=0.
    """
    placed: dict[str, dict[str, Any]] = {}
    for entry in (*rounds_of(sweep), *timing_rounds(sweep)):
        about = {name: entry.get(name) for name in COLUMNS}
        placed.update((folder, about) for folder in entry["runs"] if isinstance(folder, str))
    unplaced = {**_NOT_COUNTED, "counted": False if placed else None}

    def place(folder: str) -> dict[str, Any]:
        return _NOT_COUNTED if _put_away(folder, sweep) else placed.get(folder, unplaced)

    found = [{**result, **place(str(result["folder"]))} for result in scaled(results, sweep)]
    for result in found:
        if str(result["folder"]).startswith(f"{TIMING}/") and result.get("turns") is None:
            result["turns"] = 0
    return found


def rounds_of(sweep: Mapping[str, Any], part: int | None = None) -> list[dict[str, Any]]:
    """Return the rounds of training runs that a study recorded, all or those of a segment."""
    return _entries(sweep.get("rounds"), part)


def timing_rounds(sweep: Mapping[str, Any], part: int | None = None) -> list[dict[str, Any]]:
    """Return the timing rounds that a study recorded, all or those of a segment."""
    return _entries(sweep.get("timing"), part)


def others(sweep: Mapping[str, Any], part: int | None = None) -> float | None:
    """Return the share of the CPU time that other programs used during turns, 0 to 1.

    It is the mean over timing rounds; None where it is not known.
    """
    rounds = [entry for entry in timing_rounds(sweep, part) if entry.get("counted")]
    known = [share for entry in rounds if (share := finite(entry.get("others"))) is not None]
    return fmean(known) if known else None


def _entries(rounds: object, part: int | None) -> list[dict[str, Any]]:
    return [
        entry
        for entry in (rounds if isinstance(rounds, list) else [])
        if isinstance(entry, dict) and isinstance(entry.get("runs"), list)
        if part in (None, entry.get("part") or 0)
    ]


def question_of(sweep: Mapping[str, Any]) -> str | None:
    """Return the question that the study is to answer, None if it recorded none."""
    question = sweep.get("question")
    return question if isinstance(question, str) and question else None


def _cells(sweep: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """The cells of each round, as the values of parallel, amp and the swept keys.

    A study that did not record them planned all combinations of the swept values.
    """
    planned = sweep.get("planned_cells")
    if isinstance(planned, list) and planned:
        return [cell for cell in planned if isinstance(cell, dict)]
    swept = _swept(sweep)
    every = itertools.islice(itertools.product(*swept.values()), MOST_CELLS)
    return [dict(zip(swept, values, strict=True)) for values in every]


def planned_cells(sweep: Mapping[str, Any]) -> list[str]:
    """Return the names of the cells that a study planned, empty if it recorded none."""
    named = (cell for cell in _cells(sweep) if cell.get("parallel") and cell.get("amp"))
    axis = processes_are_swept(sweep)
    return list(
        dict.fromkeys(
            f"{strategy_name(cell['parallel'], cell.get(PROCESSES) if axis else None)}-"
            f"{cell['amp']}"
            for cell in named
        )
    )


def name_of(run: Run, sweep: Mapping[str, Any]) -> str | None:
    """Return what a study calls the cell of a run, including the swept values.

    None if the run does not say which of them it had.
    """
    known = {
        "dataset": run.dataset,
        "model": run.model,
        "batch_size": run.own_batch,
        "epochs": None if run.to_train is None else f"{run.to_train:g}",
    }
    said = {text.lstrip("+") for text in run.settings}
    said |= {f"{key}={value}" for key, value in known.items()}
    words = [run.cell]
    for key, values in _swept(sweep).items():
        if key not in ("parallel", "amp") and not (key == PROCESSES and run.scaling):
            found = [text for value in values if (text := f"{key}={value}") in said]
            if not found:
                return None
            words += found
    return " ".join(words)


@dataclass(frozen=True)
class LargestBatch:
    """The largest batch that fits a cell.

    batch_size: None if none was found
    fails_at: the smallest that does not fit, None if none was found
    status: "found", "whole_set" (the whole training set fits) or "failed" (the search did)
    why: why a larger one does not fit, or why the search failed
    """

    batch_size: int | None
    fails_at: int | None
    status: str
    why: str


def largest_batch(run: Run, sweep: Mapping[str, Any]) -> LargestBatch | None:
    """Return the largest batch that the study found for the cell of a run, None if it has none."""
    searches = sweep.get("max_batch")
    found = searches.get(name_of(run, sweep)) if isinstance(searches, dict) else None
    if not isinstance(found, dict):
        return None
    size, fails = (finite(found.get(name)) for name in ("batch_size", "fails_at"))
    why, status = str(found.get("why") or ""), found.get("status")
    if not isinstance(status, str):  # recorded before there was one
        failed = why.startswith(("the search ended: ", "there was no search: "))
        whole = why == "the whole training set fits"
        status = "failed" if failed else "whole_set" if whole else "found"
    return LargestBatch(
        None if size is None else int(size), None if fails is None else int(fails), status, why
    )


def is_unfinished(sweep: Mapping[str, Any], runs: Sequence[Run]) -> bool:
    """Whether a study has runs of its rounds left to start or to complete."""
    rounds, timing = rounds_of(sweep), timing_rounds(sweep)
    planned = finite(sweep.get("planned_rounds"))
    entries = [
        entry
        for entry in rounds
        if (entry.get("counted") or entry is rounds[-1])
        and (planned is None or (finite(entry.get("round")) or 0) < planned)
    ]
    begun = entries + [entry for entry in timing if entry.get("counted")]
    cells = len(_cells(sweep))
    names = {folder for entry in begun for folder in entry["runs"] if isinstance(folder, str)}
    return (
        _rounds_are_missing(sweep, rounds)
        or (bool(timing) and "timing_ended" in sweep and sweep["timing_ended"] is None)
        or ("accuracy" in asked(sweep) and bool(timing) and not rounds)
        or ("time" in asked(sweep) and bool(rounds) and not timing)
        or any(len(entry["runs"]) < cells for entry in entries)
        or any(run.folder in names and run.status in STOPPED for run in runs)
    )


def _rounds_are_missing(sweep: Mapping[str, Any], rounds: Sequence[Mapping[str, Any]]) -> bool:
    planned = finite(sweep.get("planned_rounds"))
    ends_when_settled = _settings(sweep).get("repeats") == "auto"
    begun = {str(entry.get("round")) for entry in rounds}
    return planned is not None and not ends_when_settled and 0 < len(begun) < planned


def asked(sweep: Mapping[str, Any]) -> list[str]:
    """Return what a study asks by itself, `time` or `accuracy`; empty: both of the same runs."""
    found = _settings(sweep).get("ask")
    return [name for name in found if isinstance(name, str)] if isinstance(found, list) else []


def _swept(sweep: Mapping[str, Any]) -> dict[str, list[Any]]:
    """The keys that a study gave several values, with the values."""
    swept = sweep.get("swept")
    found = swept.items() if isinstance(swept, dict) else ()
    return {key: values for key, values in found if isinstance(values, list) and key != "seed"}


def drift_allowed(sweep: Mapping[str, Any]) -> float | None:
    """Return the share above which a round has drifted, None if the study set none."""
    allowed = finite(_settings(sweep).get("drift"))
    return allowed if allowed is not None and allowed > 0 else None


def _settings(sweep: Mapping[str, Any]) -> Mapping[str, Any]:
    """The section `study` of a study's settings."""
    settings = sweep.get("settings")
    study = settings.get("study") if isinstance(settings, dict) else None
    return study if isinstance(study, dict) else {}


def round_number(entry: Mapping[str, Any]) -> str:
    """Return the number of a round as shown to people, from 1; 3.2 is the second attempt at it.

    Recorded numbers start at 0.
    """
    number, attempt = entry.get("round"), entry.get("attempt")
    again = f".{attempt + 1}" if isinstance(attempt, int) and attempt else ""
    return f"{number + 1}{again}" if isinstance(number, int) else MISSING


def why_not(run: Run, sweep: Mapping[str, Any]) -> str | None:
    """Return why a run enters no figure, or None if it counts."""
    if run.counts:
        return None
    if run.folder == sweep.get("burn_in"):
        return "the burn-in: it warms the machine up"
    if _put_away(run.folder, sweep):
        return "superseded: the study repeated it"
    if run.drifted:
        return "the machine drifted in this round, which was repeated"
    return "it is in no round that counts"


def _put_away(folder: str, sweep: Mapping[str, Any]) -> bool:
    """Whether a run is the burn-in, or one that was repeated."""
    superseded = sweep.get("superseded")
    listed = isinstance(superseded, list) and folder in superseded
    return listed or folder.startswith(SUPERSEDED) or folder == sweep.get("burn_in")
