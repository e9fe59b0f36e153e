"""Differences between cells, paired by round, with moderated variances (Smyth 2004)."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from itertools import combinations

import numpy as np
import numpy.typing as npt
from scipy import special

from ninefold.stats import student
from ninefold.stats.student import Array
from ninefold.stats.verdicts import Name

Ints = npt.NDArray[np.int64]
Values = Mapping[Name, Mapping[int, float]]  # cell -> round or seed -> value

NOTHING = 1e-9  # a spread below it is rounding, and no noise
MANY = 9  # cells from which a pair borrows as many degrees of freedom as it has; 2 borrow none
EQUAL = 3  # rounds in which two cells must be equal, so that it is not chance
# What is known before any round: processes of one cell differ by some 2 to 5 % (sd) on every host
# seen. Where the noise of a process's own turns is known too, that decides a difference of a factor
# after one round. The degrees of freedom keep false verdicts rare where processes differ by 8 %.
PROCESS, PROCESS_FREEDOM = 0.05, 8.0
FEW = 4  # rounds below which this is used: then a pair's own rounds say more

# trigamma(d / 2) falls as d grows: the inverse is interpolated in this table.
_FREEDOMS = np.geomspace(0.02, 2e4, 600)[::-1]
_TRIGAMMAS = special.polygamma(1, _FREEDOMS / 2)


@dataclass(frozen=True)
class Differences:
    """The differences of every pair of cells; arrays are float64 [pairs] unless said otherwise.

    table, noise: float64 [cells, rounds], what they are of: see `differences`
    first, second: int64, rows of the table
    rounds: int64, the number of rounds in common
    mean: of second - first; nan without a round
    error: its standard error; 0 if the two are equal in enough rounds, nan if unknown
    freedom: the degrees of freedom of `error`
    alone, alone_freedom: the same from the pair's own rounds only; if they show no noise, as above
    """

    table: Array
    noise: Array | None
    first: Ints
    second: Ints
    rounds: Ints
    mean: Array
    error: Array
    freedom: Array
    alone: Array
    alone_freedom: Array

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


def differences(
    table: Array, copies: Collection[tuple[int, int]] = (), noise: Array | None = None
) -> Differences:
    """Return the differences between the rows of `table`, float64 [cells, rounds], nan: missing.

    A pair is judged by the rounds that both cells have. Its variance is shrunk towards the mean of
    all pairs' variances, as far as these are alike (Smyth 2004). Below FEW rounds it is shrunk
    towards what processes are known to differ by, if `noise` is known.

    copies: pairs of rows, the lower first, that do the same work: equality in two rounds shows
        that they are equal, for all other pairs it takes EQUAL rounds
    noise: variance of each value by the turns that it is the mean of, of logarithms of seconds;
        float64 [cells, rounds], nan: not known
    """
    pairs = np.array(list(combinations(range(len(table)), 2)), dtype=np.int64).reshape(-1, 2)
    first, second = pairs.T
    values = (table[second] - table[first]).T
    there = np.isfinite(values)
    order = np.argsort(~there, axis=0, kind="stable")  # a pair's rounds first
    values = np.take_along_axis(np.where(there, values, 0.0), order, axis=0)
    rounds = there.sum(axis=0)
    mean, variance = _moments(values, rounds)
    distinct = np.unique(np.nan_to_num(table, nan=np.inf), axis=0) if table.size else table
    pooled = _pooled_freedom(distinct)
    shrunk, freedom = _moderated(variance, rounds, pooled, len(distinct))
    shrunk = np.where(shrunk > NOTHING**2, shrunk, np.nan)
    least = np.where([pair in copies for pair in zip(first, second, strict=True)], 2, EQUAL)
    equal = (rounds >= least) & (np.abs(mean) <= NOTHING) & (variance <= NOTHING**2)
    with np.errstate(divide="ignore", invalid="ignore"):
        error = np.where(equal, 0.0, np.sqrt(shrunk / rounds))
        mean = np.where(equal, 0.0, np.where(rounds > 0, mean, np.nan))
        alone = np.where(variance > NOTHING**2, np.sqrt(variance / rounds), error)
    error, alone = (np.where(rounds > 1, each, np.nan) for each in (error, alone))
    alone_freedom = np.where(variance > NOTHING**2, rounds - 1.0, freedom)
    if noise is not None:
        known, few_freedom = of_few(variance, rounds, (noise[first] + noise[second]).T)
        few = np.isfinite(known) & ~equal
        freedom, alone_freedom = (np.where(few, few_freedom, f) for f in (freedom, alone_freedom))
        error, alone = (np.where(few, np.sqrt(known), each) for each in (error, alone))
    return Differences(
        table=table,
        noise=noise,
        first=first,
        second=second,
        rounds=rounds,
        mean=mean,
        freedom=freedom,
        error=error,
        alone=alone,
        alone_freedom=alone_freedom,
    )


def of_few(variance: Array, rounds: Ints, noise: Array, pairs: int = 1) -> tuple[Array, Array]:
    """Return the variance of the mean of fewer than FEW rounds, and its degrees of freedom.

    It is that of the rounds, shrunk towards what two processes are known to differ by. nan where
    there are more rounds, or none whose noise is known.

    variance: between the rounds, 0 if there is one only. noise: of a difference by the turns of
    its two processes, float64 [rounds, ...], nan: not known. pairs: of which each round's
    difference is the mean.
    """
    there = np.isfinite(noise)
    own = np.maximum(rounds - 1.0, 0.0)
    freedom = PROCESS_FREEDOM + own
    with np.errstate(divide="ignore", invalid="ignore"):
        of_turns = np.where(there, noise, 0.0).sum(axis=0) / there.sum(axis=0)
        prior = (2 * PROCESS**2 + of_turns) / pairs
        found = (PROCESS_FREEDOM * prior + own * variance) / freedom / rounds
    return np.where((rounds > 0) & (rounds < FEW), found, np.nan), freedom


def number(value: float) -> float | None:
    """Return a value for JSON: None if it is not finite."""
    return float(value) if math.isfinite(value) else None


def _moments(values: Array, rounds: Ints) -> tuple[Array, Array]:
    """Mean and variance [..., pairs] of values [..., most rounds, pairs]."""
    inside = np.arange(values.shape[-2])[:, None] < rounds
    mean = np.where(inside, values, 0.0).sum(axis=-2) / np.maximum(rounds, 1)
    residuals = np.where(inside, values - mean[..., None, :], 0.0)
    variance = (residuals**2).sum(axis=-2) / np.maximum(rounds - 1, 1)
    return mean, variance


def _pooled_freedom(table: Array) -> float:
    """Degrees of freedom of the residuals of cell + round, an upper limit for each pair."""
    there = np.isfinite(table)
    return float(there.sum() - there.any(axis=1).sum() - there.any(axis=0).sum() + 1)


def _lent_at_most(cells: int) -> float:
    """The limit of borrowed degrees of freedom, as a share of a pair's own.

    Few cells cannot show that their variances are alike.
    """
    return min(max(cells - 2, 0) / (MANY - 2), 1.0)


def _moderated(variance: Array, rounds: Ints, pooled: float, cells: int) -> tuple[Array, Array]:
    """Variances [..., pairs] shrunk, and their degrees of freedom.

    The prior is Smyth's: the spread of the logarithms of the variances, beyond what the few rounds
    explain, measures how alike the cells are. In addition, borrowed degrees of freedom are limited
    to a pair's own, to fewer with few cells, and if the cells are not alike, a variance is only
    raised: otherwise one noisy cell among quiet ones causes false verdicts (benchmarks/LOG.md).
    """
    own = np.maximum(rounds - 1.0, 0.0)
    seen = (variance > NOTHING**2) & (own > 0)
    count = seen.sum(axis=-1)
    half = np.maximum(own, 1.0) / 2
    logs = np.log(np.where(seen, variance, 1.0)) - special.digamma(half) + np.log(half)
    center = np.where(seen, logs, 0.0).sum(axis=-1) / np.maximum(count, 1)
    spread = np.where(seen, (logs - center[..., None]) ** 2, 0.0).sum(axis=-1)
    chance = np.where(seen, special.polygamma(1, half), 0.0).sum(axis=-1) / np.maximum(count, 1)
    excess = spread / np.maximum(count - 1, 1) - chance
    prior = np.interp(excess, _TRIGAMMAS, _FREEDOMS, left=np.inf)
    alike = np.isinf(prior)
    weights = np.where(seen, own, 0.0)
    pooled_mean = (weights * variance).sum(axis=-1) / np.maximum(weights.sum(axis=-1), 1.0)
    half = np.where(alike, 1.0, prior) / 2
    mean = np.where(alike, pooled_mean, np.exp(center + special.digamma(half) - np.log(half)))
    prior = np.where(count > 1, prior, 0.0)
    most = own * _lent_at_most(cells)
    lent = np.minimum(prior[..., None], most)
    freedom = np.maximum(own + lent, 1e-300)
    shrunk = (lent * mean[..., None] + own * variance) / freedom
    shrunk = np.where(lent < most, np.maximum(shrunk, variance), shrunk)
    return shrunk, np.maximum(np.minimum(freedom, pooled), own)
