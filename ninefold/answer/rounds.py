"""Places runs in the rounds that sweep.json recorded, and tells which runs and turns count."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from ninefold.answer.cell import Cell, plainness
from ninefold.answer.facts import timings_of
from ninefold.answer.runs import Run, waits_for_host
from ninefold.result import PROCESSES, TIMING, Result, cell_name
from ninefold.stats.verdicts import Timings
from ninefold.study_record import StudyRecord, was_repeated
from ninefold.tournament.budget import LOOKS
from ninefold.tournament.taken import Counted, TakenTurn, counted
from ninefold.types import LEAST_ROUNDS

StudyTurns = tuple[Counted, Sequence[Timings]]
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
    """Return runs with their places in the study, by dataset, model, cell and seed.

    They get the round that they are of; where the study swept the processes, also `scaling`. In a
    sweep without rounds, all runs count except superseded ones. In one with rounds, a run that is
    in none of them does not count. A timing run that has no turns, as it failed, gets turns=0.
    """
    runs = [*found]
    rounds = {folder: each for each in (*sweep.rounds, *sweep.timing) for folder in each.runs}
    for run in runs:
        entry = rounds.get(run.folder)
        if was_repeated(run.folder) or (entry is None and rounds):
            run.counted = False
        elif entry is not None:
            run.round, run.counted = entry.round, True
        if run.folder.startswith(f"{TIMING}/") and run.turns is None:
            run.turns = 0
        if sweep.scaling and (run.processes or 0) > 0:
            run.scaling = sweep.scaling
    count_turns(runs)
    return sorted(runs, key=_order)


def _order(run: Run) -> tuple[Any, ...]:
    seed = -1 if run.seed is None else run.seed
    of = run.dataset or "", run.model or "", plainness(run.cell)
    return *of, seed, run.batch_size or 0, run.folder


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
    planned = rounds[: sweep.planned_rounds]
    names = {folder for entry in (*planned, *timing) for folder in entry.runs}
    return (
        0 < len(rounds) < sweep.planned_rounds
        or (bool(timing) and sweep.timing_ended is None)
        or ("score" in sweep.asked and bool(timing) and not rounds)
        or ("time" in sweep.asked and bool(rounds) and not timing)
        or any(len(entry.runs) < len(sweep.planned_cells) for entry in planned)
        or bool(names - {run.folder for run in runs if run.status not in STOPPED})
    )


def why_not(run: Run) -> str | None:
    """Return why a run enters no figure, or None if it counts."""
    if run.counts:
        return None
    if was_repeated(run.folder):
        return "superseded: the study repeated it"
    return "it is in no round that counts"


def count_turns(runs: Sequence[Run]) -> None:
    """Give the turns of timing runs their places in the study, and mark those that do not count."""
    of, found = _counted(runs)
    for run in of:
        run.taken = []
    for run, turn in zip(of, found.turns, strict=True):
        run.taken.append(turn)


def turns_of(runs: Sequence[Run], sweep: StudyRecord) -> StudyTurns:
    """Return the turns of all runs of a study that count, and the times at each look.

    The times are seconds per epoch by the names of the runs' folders; the last look is now. Where a
    study has not recorded its looks, its rounds are taken as equally long.
    """
    timed = [run for run in runs if run.timed]
    numbers = [entry.round for entry in sweep.timing] or sorted({run.round or 0 for run in timed})
    place, count = {number: place for place, number in enumerate(numbers)}, len(numbers)
    looks = sweep.timing_looks or {look: look / count for look in LOOKS if look < count}
    looks = {number: share for number, share in looks.items() if number >= LEAST_ROUNDS}
    _, now = _counted(runs)
    stretches, epochs = defaultdict[str, dict[int, float]](dict), dict[str, float]()
    by_name = defaultdict[str, list[Run]](list)
    for run in sorted(timed, key=lambda run: run.round or 0):
        if run.ok and run.counts and run.epochs and run.steps:
            by_name[folder_name(run)].append(run)
            epochs[folder_name(run)] = run.epochs / run.steps
            if run.stretch_seconds:
                stretches[folder_name(run)][place[run.round or 0]] = run.stretch_seconds
    turns = [replace(t, round=place[t.round]) for t in now.turns if t.name in by_name]
    found = timings_of(turns, looks, count, stretches, work=epochs)
    return now, [replace(each, waits=_waiting(by_name, each)) for each in found]


def _waiting(runs: Mapping[str, Sequence[Run]], known: Timings) -> set[str]:
    """Whose runs so far wait for their host, and have enough long stretches."""
    enough = [name for name, of in known.stretches.items() if len(of) >= LEAST_ROUNDS]
    so_far = {name: runs[name][: len(known.seconds.get(name, ()))] for name in enough}
    return {name for name, own in so_far.items() if waits_for_host(own)}


def _counted(runs: Sequence[Run]) -> tuple[list[Run], Counted]:
    """The turns of runs that count, in the order in which they were taken, and the run of each.

    Turns of an older recording, whose begin is not known, were spread evenly over their round.
    """

    def place(taken: tuple[Run, TakenTurn]) -> tuple[int, float, str]:
        run, turn = taken
        begin = (turn.turn + 0.5) / len(run.taken) if turn.begin is None else turn.begin
        return run.round or 0, float(begin), folder_name(run)

    taken = [(run, turn) for run in runs if run.ok and run.counts for turn in run.taken]
    taken.sort(key=place)
    placed = [
        replace(turn, name=folder_name(run), round=run.round or 0, order=order)
        for order, (run, turn) in enumerate(taken)
    ]
    return [run for run, _ in taken], counted(placed)


def folder_name(run: Run) -> str:
    """What tells the cell of a timing run from others: the name of its folder."""
    return Path(run.folder).name or str(run.cell)
