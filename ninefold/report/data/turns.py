"""Which turns of a study's timing runs count."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from ninefold.report.data.runs import Run
from ninefold.tournament.taken import Counted, TakenTurn, counted


def count_turns(runs: Sequence[Run]) -> None:
    """Give the turns of timing runs their places in the study, and mark those that do not count."""
    timed, found = _counted(runs)
    for run in timed:
        run.taken = []
    for run, turn in zip(timed, found.turns, strict=True):
        run.taken.append(turn)


def turns_of(runs: Sequence[Run]) -> Counted:
    """Return the turns of all runs of a study that count."""
    return _counted(runs)[1]


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
