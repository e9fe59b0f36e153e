"""Splits the noise of timing runs: between the turns of a process, and between processes."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from ninefold.stats.student import Array
from ninefold.stats.verdicts import Name


@dataclass(frozen=True)
class Components:
    """Standard deviations of seconds per step, relative to their mean; None if unknown.

    turn: between the turns of a process, of the seconds over their mean
    process: between processes of a cell in different rounds, without what all cells of a round
        share and without what the turns add to it
    turns: counted turns of a process, the median
    """

    turn: float | None
    process: float | None
    turns: int


def components(cells: Mapping[Name, Mapping[int, Sequence[float]]]) -> Components:
    """Return the parts of the noise. cells: seconds of the turns, by cell and timing round."""
    known = {
        cell: by_round
        for cell, rounds in cells.items()
        if (by_round := {number: np.array(turns) for number, turns in rounds.items() if len(turns)})
    }
    several = [turns for rounds in known.values() for turns in rounds.values() if len(turns) > 1]
    if not several:
        return Components(None, None, 0)
    turn = math.sqrt(_variance(several))
    count = int(np.median([len(turns) for turns in several]))
    names, numbers = list(known), sorted({n for rounds in known.values() for n in rounds})
    table = np.full((len(names), len(numbers)), np.nan)
    added = np.zeros(len(names))  # variance of a process's number that its turns are the cause of
    for row, cell in enumerate(names):
        own = [turns for turns in known[cell].values() if len(turns) > 1]
        each = _variance(own) if own else turn**2
        added[row] = each * np.mean([1 / len(turns) for turns in known[cell].values()])
        for number, turns in known[cell].items():
            table[row, numbers.index(number)] = math.log(turns.mean())
    table = table[:, np.isfinite(table).all(axis=0)]  # the rounds with all cells
    freedom = (table.shape[0] - 1) * (table.shape[1] - 1)
    if freedom < 1:
        return Components(turn, None, count)
    left = table - table.mean(axis=0) - table.mean(axis=1, keepdims=True) + table.mean()
    between = float((left**2).sum()) / freedom - float(added.mean())
    return Components(turn, math.sqrt(max(between, 0.0)), count)


def _variance(processes: Sequence[Array]) -> float:
    """Variance of turns over the mean of their process."""
    squares = sum(float(((turns / turns.mean() - 1) ** 2).sum()) for turns in processes)
    return squares / sum(len(turns) - 1 for turns in processes)
