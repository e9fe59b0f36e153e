"""Differences between cells, paired by round or seed, with moderated variances (Smyth 2004)."""

from __future__ import annotations

import math
from collections.abc import Collection
from dataclasses import dataclass, fields, replace

import numpy as np
import numpy.typing as npt
from scipy import special

from ninefold.stats import student
from ninefold.stats.student import Array
from ninefold.types import LEAST_ROUNDS

Ints = npt.NDArray[np.int64]

NOTHING = 1e-9  # a spread below it is rounding, and no noise
MANY = 9  # cells from which a pair borrows as many degrees of freedom as it has; 2 borrow none
EQUAL = 3  # rounds in which two cells must be equal, so that it is not chance
NO_TEST = -1

# trigamma(d / 2) falls as d grows: the inverse is interpolated in this table.
_FREEDOMS = np.geomspace(0.02, 2e4, 600)[::-1]
_TRIGAMMAS = special.polygamma(1, _FREEDOMS / 2)


@dataclass(frozen=True)
class Differences:
    """The differences of every pair of cells; arrays are float64 [pairs] unless said otherwise.

    first, second: int64, numbers of cells
    rounds: int64, the number of rounds in common
    mean: of second - first; nan without a round
    error: its standard error; 0 if the two are equal in enough rounds, nan if unknown
    freedom: the degrees of freedom of `error`
    alone, alone_freedom: the same from the pair's own rounds only, which is all that shows a noise
        that other cells have not
    test: int64, the pair whose test each shares, most often itself; NO_TEST: its cells are copies
    """

    first: Ints
    second: Ints
    rounds: Ints
    mean: Array
    error: Array
    freedom: Array
    alone: Array
    alone_freedom: Array
    test: Ints

    @property
    def judged(self) -> npt.NDArray[np.bool_]:
        """bool [pairs]: whether the error is known and above 0."""
        return np.isfinite(self.error) & (self.error > 0)

    def p(self) -> Array:
        """Two-sided p of no difference: 1 if equal in every round, nan if the error is unknown."""
        statistic = np.abs(self.mean) / np.where(self.judged, self.error, np.nan)
        return np.where(self.error == 0, 1.0, 2 * student.above(statistic, self.freedom))

    def reach(self, level: float) -> Array:
        """Return half the width of each pair's interval at confidence 1 - level (Student's).

        It uses the pair's own rounds alone: with borrowed variance it is too narrow for a pair that
        is noisier than the others.
        """
        quantile = student.quantile(level / 2, np.where(self.judged, self.alone_freedom, np.nan))
        return np.where(self.error == 0, 0.0, quantile * self.alone)

    def where(self, these: npt.NDArray[np.bool_], others: Differences) -> Differences:
        """Return these differences, bool [pairs], and for the rest those of `others`."""
        found = {
            each.name: np.where(these, getattr(self, each.name), getattr(others, each.name))
            for each in fields(self)
        }
        return Differences(**found)


def differences(table: Array, copies: Collection[tuple[int, int]] = ()) -> Differences:
    """Return the differences between the rows of `table`, float64 [cells, seeds], nan: missing.

    A pair is judged by the seeds that both cells have. Its variance is shrunk towards the mean of
    all pairs' variances, as far as these are alike (Smyth 2004).

    copies: pairs of rows, the lower first, that do the same work: equality in two rounds shows
        that they are equal, for all other pairs it takes EQUAL rounds
    """
    first, second = np.triu_indices(len(table), 1)
    values = (table[second] - table[first]).T
    there = np.isfinite(values)
    order = np.argsort(~there, axis=0, kind="stable")  # a pair's rounds first
    values = np.take_along_axis(np.where(there, values, 0.0), order, axis=0)
    rounds = there.sum(axis=0)
    mean = values.sum(axis=0) / np.maximum(rounds, 1)
    residuals = np.where(np.arange(len(values))[:, None] < rounds, values - mean, 0.0)
    variance = (residuals**2).sum(axis=0) / np.maximum(rounds - 1, 1)
    distinct = np.unique(np.nan_to_num(table, nan=np.inf), axis=0) if table.size else table
    pooled = _pooled_freedom(distinct)
    shrunk, freedom = _moderated(variance, rounds, pooled, len(distinct))
    shrunk = np.where(shrunk > NOTHING**2, shrunk, np.nan)
    least = np.where(
        [pair in copies for pair in zip(first.tolist(), second.tolist(), strict=True)], 2, EQUAL
    )
    group = _equal(table)
    equal = (rounds >= least) & (group[first] == group[second])
    with np.errstate(divide="ignore", invalid="ignore"):
        error = np.where(equal, 0.0, np.sqrt(shrunk / rounds))
        mean = np.where(equal, 0.0, np.where(rounds > 0, mean, np.nan))
        alone = np.where(variance > NOTHING**2, np.sqrt(variance / rounds), error)
    error, alone = (np.where(rounds > 1, each, np.nan) for each in (error, alone))
    alone_freedom = np.where(variance > NOTHING**2, rounds - 1.0, freedom)
    return Differences(
        first=first,
        second=second,
        rounds=rounds,
        mean=mean,
        freedom=freedom,
        error=error,
        alone=alone,
        alone_freedom=alone_freedom,
        test=shared_tests(group),
    )


def of_times(logs: Array, copies: Collection[tuple[int, int]] = ()) -> Differences:
    """Return the differences between logarithms of seconds, float64 [cells, rounds], nan: missing.

    Nothing is told of pairs with fewer than LEAST_ROUNDS rounds in common.

    copies: pairs of rows, the lower first, that do the same work: the mean of their logarithms
        takes the place of each where they are compared with others
    """
    alone = differences(logs)
    merged, group = logs.copy(), np.arange(len(logs))
    for base, copy in sorted(copies):
        group[group == group[copy]] = group[base]
    for rows in (group == first for first in {*group.tolist()}):
        there = np.isfinite(logs[rows])
        with np.errstate(invalid="ignore"):
            merged[rows] = np.where(there, logs[rows], 0.0).sum(axis=0) / there.sum(axis=0)
    copied = group[alone.first] == group[alone.second]
    found = alone.where(copied, differences(merged))
    few = found.rounds < LEAST_ROUNDS
    error, own = (np.where(few, np.nan, each) for each in (found.error, found.alone))
    return replace(found, error=error, alone=own, test=shared_tests(group))


def shared_tests(group: Ints) -> Ints:
    """Return the pair whose test each pair of cells shares; NO_TEST within a group.

    group: int64 [cells], the first cell that does the same work
    """
    first, second = np.triu_indices(len(group), 1)
    place = np.zeros((len(group), len(group)), dtype=np.int64)
    place[first, second] = place[second, first] = np.arange(len(first))
    of = group[first], group[second]
    found: Ints = np.where(of[0] == of[1], NO_TEST, place[of])
    return found


def number(value: float) -> float | None:
    """Return a value for JSON: None if it is not finite."""
    return float(value) if math.isfinite(value) else None


def _equal(table: Array) -> Ints:
    """The first cell that has each cell's scores in all its seeds, and perhaps more."""
    group = np.arange(len(table), dtype=np.int64)
    for later, own in enumerate(table):
        mine = np.isfinite(own)
        off = np.abs(table[:later, mine] - own[mine])
        same = mine.any() & (off <= NOTHING).all(axis=1)
        if same.any():
            group[later] = group[same.argmax()]
    return group


def _pooled_freedom(table: Array) -> float:
    """Degrees of freedom of the residuals of cell + round, an upper limit for each pair."""
    there = np.isfinite(table)
    return float(there.sum() - there.any(axis=1).sum() - there.any(axis=0).sum() + 1)


def _moderated(variance: Array, rounds: Ints, pooled: float, cells: int) -> tuple[Array, Array]:
    """Variances [pairs] shrunk, and their degrees of freedom.

    The prior is Smyth's: the spread of the logarithms of the variances, beyond what the few rounds
    explain, measures how alike the cells are. In addition, borrowed degrees of freedom are limited
    to a pair's own, to fewer with few cells, which cannot show that their variances are alike. If
    the cells are not alike, a variance is only raised: otherwise one noisy cell among quiet ones
    causes false verdicts (benchmarks/log/statistics.md).
    """
    own = np.maximum(rounds - 1.0, 0.0)
    seen = (variance > NOTHING**2) & (own > 0)
    count = int(seen.sum())
    half = np.maximum(own, 1.0) / 2
    logs = np.log(np.where(seen, variance, 1.0)) - special.digamma(half) + np.log(half)
    center = np.where(seen, logs, 0.0).sum() / max(count, 1)
    spread = np.where(seen, (logs - center) ** 2, 0.0).sum() / max(count - 1, 1)
    chance = np.where(seen, special.polygamma(1, half), 0.0).sum() / max(count, 1)
    prior = np.interp(spread - chance, _TRIGAMMAS, _FREEDOMS, left=np.inf)
    if np.isinf(prior):  # all variances are alike
        weights = np.where(seen, own, 0.0)
        mean = (weights * variance).sum() / max(weights.sum(), 1.0)
    else:
        mean = np.exp(center + special.digamma(prior / 2) - np.log(prior / 2))
    most = own * min(max(cells - 2, 0) / (MANY - 2), 1.0)
    lent = np.minimum(prior if count > 1 else 0.0, most)
    freedom = np.maximum(own + lent, 1e-300)
    shrunk = (lent * mean + own * variance) / freedom
    shrunk = np.where(lent < most, np.maximum(shrunk, variance), shrunk)
    return shrunk, np.maximum(np.minimum(freedom, pooled), own)
