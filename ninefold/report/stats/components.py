"""The noise of timing runs, in parts: between the turns of a process, and between processes."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from ninefold.result import location

# Variance of the location of normal values, the mean of their fastest half, as a multiple of that
# of the mean of all: simulated, 2 to 100 values.
FASTEST_HALF = 1.35


@dataclass(frozen=True)
class Components:
    """Standard deviations of the logarithms of seconds per step; None if unknown.

    turn: between the turns of a process
    process: between processes of a cell in different rounds, without what all cells of a round
        share and without what the turns add to it
    turns: counted turns of a process, the median
    """

    turn: float | None
    process: float | None
    turns: int

    def best_turns(self, cost: float) -> int | None:
        """Return how many turns of a process get most from a given time; None if unknown.

        Kalibera and Jones 2013. cost: of starting a process, in turns
        """
        if not self.turn or not self.process:
            return None
        return max(1, round(math.sqrt(cost * FASTEST_HALF) * self.turn / self.process))


def components(cells: Mapping[str, Mapping[int, Sequence[float]]]) -> Components:
    """Return the parts of the noise. cells: seconds of the turns, by cell and timing round."""
    logs = {
        cell: {number: np.log(turns) for number, turns in rounds.items() if len(turns) > 1}
        for cell, rounds in cells.items()
    }
    every = [turns for rounds in logs.values() for turns in rounds.values()]
    if not every:
        return Components(None, None, 0)
    own = sum(len(turns) - 1 for turns in every)
    # Half of the turns' distances from the middle: a slow turn does not enter.
    far = np.concatenate([np.abs(turns - np.median(turns)) for turns in every])
    turn = float(np.median(far)) * 1.4826 * math.sqrt(far.size / own)
    count = int(np.median([len(turns) for turns in every]))
    names, numbers = list(logs), sorted({n for rounds in logs.values() for n in rounds})
    table = np.full((len(names), len(numbers)), np.nan)
    for row, cell in enumerate(names):
        for number, turns in logs[cell].items():
            table[row, numbers.index(number)] = math.log(location(np.exp(turns).tolist()))
    table = table[:, np.isfinite(table).all(axis=0)]  # the rounds with all cells
    freedom = (table.shape[0] - 1) * (table.shape[1] - 1)
    if freedom < 1:
        return Components(turn, None, count)
    left = table - table.mean(axis=0) - table.mean(axis=1, keepdims=True) + table.mean()
    between = float((left**2).sum()) / freedom - FASTEST_HALF * turn**2 / count
    return Components(turn, math.sqrt(max(between, 0.0)), count)
