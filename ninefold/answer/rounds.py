"""Places runs in the rounds that sweep.json recorded, and tells which of them count."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from ninefold.answer.cell import Cell, plainness
from ninefold.answer.runs import Run
from ninefold.answer.study_turns import count_turns
from ninefold.result import PROCESSES, TIMING, Result, cell_name
from ninefold.study_record import StudyRecord
from ninefold.tournament.taken import TakenTurn

STOPPED = ("preempted", "unfinished")  # the status of runs that resuming the study would complete


def runs_of(
    results: Mapping[str, Result], turns: Mapping[str, Sequence[TakenTurn]], sweep: StudyRecord
) -> list[Run]:
    """Return the runs of a study that is being made, placed in it.

    results, turns: by the folder of a run.
    """
    runs = [
        Run(**vars(of), folder=name, taken=[*turns.get(name, ())]) for name, of in results.items()
    ]
    return placed(runs, sweep)


def placed(found: Iterable[Run], sweep: StudyRecord) -> list[Run]:
    """Return runs with their places in the study, by dataset, model, cell and seed."""
    runs = [*found]
    _place(runs, sweep)
    count_turns(runs)
    return sorted(runs, key=_order)


def _order(run: Run) -> tuple[Any, ...]:
    return (
        run.dataset or "",
        run.model or "",
        plainness(run.cell),
        -1 if run.seed is None else run.seed,
        run.batch_size or 0,
        run.folder,
    )


def _place(runs: Sequence[Run], sweep: StudyRecord) -> None:
    """Give runs the round of a study that they are of, and whether it counts.

    Where the study swept the processes, also `scaling`.

    In a sweep without rounds, all runs count except superseded ones. In one with
    rounds, a run that is in none of them does not count. A timing run that has no turns, as it
    failed, gets turns=0.
    """
    rounds = {folder: each for each in (*sweep.rounds, *sweep.timing) for folder in each.runs}
    for run in runs:
        entry = rounds.get(run.folder)
        if sweep.put_away(run.folder) or (entry is None and rounds):
            run.counted = False
        elif entry is not None:
            run.round, run.counted = entry.round, entry.counted
        if run.folder.startswith(f"{TIMING}/") and run.turns is None:
            run.turns = 0
        if sweep.scaling and (run.processes or 0) > 0:
            run.scaling = sweep.scaling


def untimed(sweep: StudyRecord) -> dict[Cell, Cell]:
    """Return the cells that a study left out of its turns, each with the one it repeats."""
    cells = {
        cell_name(keys): Cell(keys["parallel"], keys["amp"], int(count) if count else None)
        for keys in sweep.planned_cells
        if keys.get("parallel") and keys.get("amp")
        for count in [keys.get(PROCESSES) if sweep.scaling else None]
    }
    return {
        cells[name]: cells[base]
        for name, base in sweep.untimed.items()
        if name in cells and base in cells
    }


def is_unfinished(sweep: StudyRecord, runs: Sequence[Run]) -> bool:
    """Return whether a study has runs of its rounds left to start or to complete."""
    rounds, timing = sweep.rounds, sweep.timing
    planned = [
        entry
        for entry in rounds
        if (entry.counted or entry is rounds[-1]) and entry.round < sweep.planned_rounds
    ]
    begun = planned + [entry for entry in timing if entry.counted]
    names = {folder for entry in begun for folder in entry.runs}
    return (
        0 < len({entry.round for entry in rounds}) < sweep.planned_rounds
        or (bool(timing) and sweep.timing_ended is None)
        or ("score" in sweep.asked and bool(timing) and not rounds)
        or ("time" in sweep.asked and bool(rounds) and not timing)
        or any(len(entry.runs) < len(sweep.planned_cells) for entry in planned)
        or any(run.folder in names and run.status in STOPPED for run in runs)
    )


def why_not(run: Run, sweep: StudyRecord) -> str | None:
    """Return why a run enters no figure, or None if it counts."""
    if run.counts:
        return None
    if sweep.put_away(run.folder):
        return "superseded: the study repeated it"
    return "it is in no round that counts"
