"""Which turns of a study's timing runs count, now and when it was looked at what they show."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from ninefold.report.data.runs import Run
from ninefold.stats.looks import looks_until
from ninefold.study_record import StudyRecord
from ninefold.tournament.budget import LOOKS
from ninefold.tournament.taken import Counted, TakenTurn, counted
from ninefold.types import LEAST_ROUNDS


@dataclass(frozen=True)
class Look:
    """A look at the timing rounds of a study.

    runs: those of complete rounds by folder, with the turns that counted then. shares: of the time
    at the looks up to this one.
    """

    runs: Mapping[str, Run]
    shares: Sequence[float]


@dataclass(frozen=True)
class StudyTurns:
    """The turns of all timing runs of a study, and the looks at them, of which the last is now."""

    now: Counted
    looks: Sequence[Look]


def count_turns(runs: Sequence[Run]) -> None:
    """Give the turns of timing runs their places in the study, and mark those that do not count."""
    for folder, turns in _by_run(*_counted(runs)).items():
        next(run for run in runs if run.folder == folder).taken = turns


def turns_of(runs: Sequence[Run], sweep: StudyRecord) -> StudyTurns:
    """Return the turns of all runs of a study."""
    return StudyTurns(_counted(runs)[1], [*_looks(runs, sweep)])


def _looks(runs: Sequence[Run], sweep: StudyRecord) -> Iterator[Look]:
    """The looks at a study; where it has not recorded them, rounds are taken as equally long."""
    timed = [run for run in runs if run.timed]
    numbers = [entry.round for entry in sweep.timing] or sorted({run.round or 0 for run in timed})
    count = len(numbers)
    looks = sweep.timing_looks or {look: look / count for look in LOOKS if look < count}
    looks = {number: share for number, share in looks.items() if number >= LEAST_ROUNDS}
    for number, shares in looks_until(looks, count):
        then = [run for run in timed if (run.round or 0) in numbers[:number]]
        taken = _by_run(*_counted(then))
        found = {run.folder: replace(run, taken=taken.get(run.folder, [])) for run in then}
        yield Look(found, shares)


def _by_run(runs: Sequence[Run], found: Counted) -> dict[str, list[TakenTurn]]:
    """The turns of each run, by its folder."""
    taken: dict[str, list[TakenTurn]] = {run.folder: [] for run in runs}
    for run, turn in zip(runs, found.turns, strict=True):
        taken[run.folder].append(turn)
    return taken


def _counted(runs: Sequence[Run]) -> tuple[list[Run], Counted]:
    """The turns of runs that count, in the order in which they were taken, and the run of each.

    Turns of an older recording, whose begin is not known, were spread evenly over their round.
    """

    def place(taken: tuple[Run, TakenTurn]) -> tuple[int, float, str]:
        run, turn = taken
        begin = (turn.turn + 0.5) / len(run.taken) if turn.begin is None else turn.begin
        return run.round or 0, float(begin), _name(run)

    taken = [(run, turn) for run in runs if run.ok and run.counts for turn in run.taken]
    taken.sort(key=place)
    placed = [
        replace(turn, name=_name(run), round=run.round or 0, order=order)
        for order, (run, turn) in enumerate(taken)
    ]
    return [run for run, _ in taken], counted(placed)


def _name(run: Run) -> str:
    """What tells the cell of a timing run from others: the name of its folder."""
    return Path(run.folder).name or str(run.cell)
