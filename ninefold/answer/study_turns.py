"""Which turns of a study's timing runs count, now and when it was looked at what they show."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from ninefold.answer.facts import timings_of
from ninefold.answer.runs import Run, waits_for_host
from ninefold.stats.verdicts import Timings
from ninefold.study_record import StudyRecord
from ninefold.tournament.budget import LOOKS
from ninefold.tournament.taken import Counted, TakenTurn, counted
from ninefold.types import LEAST_ROUNDS


@dataclass(frozen=True)
class StudyTurns:
    """The turns of all timing runs of a study, by the names of their folders.

    now: which of them count. timings: the seconds per epoch at each look, of which the last is now.
    """

    now: Counted
    timings: Sequence[Timings]


def count_turns(runs: Sequence[Run]) -> None:
    """Give the turns of timing runs their places in the study, and mark those that do not count."""
    of, found = _counted(runs)
    for run in of:
        run.taken = []
    for run, turn in zip(of, found.turns, strict=True):
        run.taken.append(turn)


def turns_of(runs: Sequence[Run], sweep: StudyRecord) -> StudyTurns:
    """Return the turns of all runs of a study, and the times at each look.

    Where a study has not recorded its looks, its rounds are taken as equally long.
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
    return StudyTurns(now, [replace(each, waits=_waiting(by_name, each)) for each in found])


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
