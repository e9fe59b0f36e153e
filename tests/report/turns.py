"""Made-up studies that are timed in turns, of which the truth is known."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from ninefold.stats import holm
from ninefold.stats.best import standing
from ninefold.stats.differences import Differences, of_times
from ninefold.stats.verdicts import Settings
from ninefold.tournament.budget import LOOKS, MOST_ROUNDS
from tests.report.studies import CELLS, Array

STUDY_LOOKS = [n for n in LOOKS if n <= MOST_ROUNDS]
SETTINGS = Settings()


@dataclass(frozen=True)
class Noise:
    """Standard deviations of times, relative to what they are on average.

    process: of each process; turn: of each turn of a process; round: of what all cells share
    tails: degrees of freedom of Student's t, in place of the normal distribution
    late: what turns of the last cell are delayed by in the mean, as a share of their time: each
        by another time, exponentially distributed, as a cell whose processes wait for each other
    """

    process: float = 0.012
    turn: float = 0.015
    round: float = 0.03
    tails: int | None = None
    late: float = 0.0

    def turns(self, rng: np.random.Generator, cells: int, turns: int = 5) -> Array:
        """Times of turns around 1 in the mean: float64 [cells, last look, turns]."""
        shape = cells, MOST_ROUNDS, turns
        common = self._draw(rng, shape[1:2], self.round)[:, None]
        own = self._draw(rng, shape[:2], self.process)[..., None]
        found: Array = np.exp(common + own + self._draw(rng, shape, self.turn))
        if self.late:
            found[-1] *= (1 + self.late * rng.exponential(size=shape[1:])) / (1 + self.late)
        return found

    def _draw(self, rng: np.random.Generator, shape: tuple[int, ...], sd: float) -> Array:
        if self.tails is None:
            return sd * rng.standard_normal(shape)
        return sd * rng.standard_t(self.tails, shape) / np.sqrt(self.tails / (self.tails - 2))


@dataclass(frozen=True)
class Outcome:
    """How a study ended.

    rounds: timing rounds until it was settled; None if the last look did not settle it
    runs: timing runs in all
    named: how much slower than the best the named cell is, as a logarithm
    false: whether at any look a cell was called slower than one that is as fast
    lost: whether at any look every cell that is as fast as the best was out
    held: share of pairs whose intervals held the truth at every look
    found: the first look at which each cell was shown to be slower than the best, 0 for never
    """

    rounds: int | None
    runs: int
    named: float
    false: bool
    lost: bool
    held: float
    found: Sequence[int]


def play(slower: Sequence[float], turns: Array, pairs: str = "best", stop: bool = True) -> Outcome:
    """Run a study of cells that are `slower` (logarithms) with the noise of `Noise.turns`.

    After each look the cells that are out are measured no further.
    stop: whether it ends when it is settled.
    """
    truth, names = np.array(slower), CELLS[: len(slower)]
    full = truth[:, None] + np.log(turns.mean(axis=2))
    seen_table = np.full_like(full, np.nan)
    going = np.ones(len(truth), dtype=bool)
    runs, before, false, lost, held = 0, 0, False, False, None
    found, shares = [0] * len(truth), list[float]()
    looks = list[tuple[Differences, Settings]]()
    for look in STUDY_LOOKS:
        seen_table[going, before:look] = full[going, before:look]
        runs, before = runs + int(going.sum()) * (look - before), look
        shares.append(look / STUDY_LOOKS[-1])
        settings = Settings(shares=tuple(shares))
        seen = of_times(seen_table[:, :look])
        looks.append((seen, settings))
        tests = len(seen.mean)
        shown = holm.adjusted(seen.p()) <= settings.level_of_look(tests)
        apart = truth[seen.second] - truth[seen.first]
        false |= bool((shown & (seen.mean * apart <= 0)).any())
        inside = ~(np.abs(seen.mean - apart) > seen.reach(settings.level_of_look()))
        held = inside if held is None else held & inside
        stand = standing(names, looks, names)
        out = [names.index(cell) for cell in stand.out]
        for row in out:
            found[row] = found[row] or look
        lost |= set(np.flatnonzero(truth == truth.min())) <= set(out)
        near = [i for i, cell in enumerate(names) if stand.chance[cell] >= 1 - SETTINGS.level]
        named = near[0] if near else names.index(stand.lead)
        behind = float(truth[named] - truth.min())
        if near and stop:
            return Outcome(look, runs, behind, false, lost, float(held.mean()), found)
        if pairs == "best":
            going = ~np.isin(np.arange(len(truth)), out)
    assert held is not None
    return Outcome(None, runs, behind, false, lost, float(held.mean()), found)
