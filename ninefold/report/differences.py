"""Differences between cells, paired by round, with variances that borrow from each other."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from itertools import combinations

import numpy as np
import numpy.typing as npt
from scipy import special, stats

Array = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]
Values = Mapping[str, Mapping[int, float]]  # cell ("ddp-fp32") -> round or seed -> value

NOTHING = 1e-9  # a spread below it is rounding: no noise was seen
REDRAWN = 4  # rounds from which on a bootstrap has enough to draw from
WIDENED = 1.5  # what a bootstrap may make of Student's interval at most
EQUAL = 3  # rounds in which two cells are equal before that is no chance
MOST = 100  # seeds in all; a question that takes more has no practical answer
POWER = 0.8  # with which `needed` is to settle it

# trigamma(d / 2) falls as d grows; looked up backwards it gives the d of a wanted value.
_FREEDOMS = np.geomspace(0.02, 2e4, 600)[::-1]
_TRIGAMMAS = special.polygamma(1, _FREEDOMS / 2)
_SEEDS = np.arange(2, MOST + 1)


@dataclass(frozen=True)
class Differences:
    """What the rounds say of every pair of cells; arrays are [pairs].

    first, second: rows of the table. rounds: int64, in common. mean: float64, of second - first,
    nan without a round. error: its standard error, 0 where the two are equal in every round of
    enough, nan where there is nothing to judge it by. freedom: float64, the degrees of freedom of
    `error`. prior: those that the cells together lend to each pair, before any limit. cells: how
    many differ from each other. residuals: float64 [most rounds, pairs], 0 beyond a pair's rounds.
    """

    first: Ints
    second: Ints
    rounds: Ints
    mean: Array
    error: Array
    freedom: Array
    prior: float
    cells: int
    residuals: Array

    @property
    def judged(self) -> npt.NDArray[np.bool_]:
        """Where there is an error to judge by, above zero."""
        return np.isfinite(self.error) & (self.error > 0)

    def p(self) -> Array:
        """Two-sided p of no difference: 1 where equal in every round, nan where not judged."""
        statistic = np.abs(self.mean) / np.where(self.judged, self.error, np.nan)
        return np.where(self.error == 0, 1.0, 2 * stats.t.sf(statistic, self.freedom))

    def reach(self, level: float, draws: int) -> Array:
        """Return half the width of each pair's interval at confidence 1 - level.

        Bootstrap-t: rounds are drawn anew from the pairs' residuals and analyzed as the data were;
        the quantile of all their |t| replaces that of Student's t. draws=0 keeps Student's, as do
        pairs of so few rounds that too many draws are one round over and over. Of few rounds some
        draws have hardly any spread, and a |t| of any size, which tells of the drawing and not of
        the noise: hence WIDENED.
        """
        quantile: Array = stats.t.isf(level / 2, np.where(self.judged, self.freedom, np.nan))
        if draws and self.judged.any():
            drawn = np.abs(_redrawn(self, draws))
            for rounds in np.unique(self.rounds[self.judged & (self.rounds >= REDRAWN)]):
                alike = self.judged & (self.rounds == rounds)
                bootstrap = float(np.quantile(drawn[:, alike], 1 - level, method="higher"))
                quantile[alike] = np.minimum(bootstrap, WIDENED * quantile[alike])
        return np.where(self.error == 0, 0.0, quantile * self.error)

    def power_of_difference(self, level: float) -> Array:
        """Chance that so many seeds show the difference observed: [pairs, 2 to 100 seeds]."""
        return self.power_above(np.abs(self.mean), level / 2)

    def power_inside(self, same: float, level: float) -> Array:
        """Chance that the interval at 1 - level of so many seeds lies inside ±same."""
        below = self.power_above(same - self.mean, level / 2)
        return below + self.power_above(same + self.mean, level / 2) - 1

    def power_above(self, above: Array, level: float) -> Array:
        """Chance that a one-sided test shows what lies `above` [pairs] its bound to do so.

        At the noise observed; by the usual normal approximation to the noncentral t distribution.
        """
        error = (self.error * np.sqrt(self.rounds))[:, None] / np.sqrt(_SEEDS)
        own = _SEEDS - 1.0
        freedom = np.minimum(own + np.minimum(self.prior, own), (self.cells - 1) * own)
        critical = stats.t.isf(level, np.maximum(freedom, 1.0))
        with np.errstate(divide="ignore", invalid="ignore"):
            beyond = above[:, None] / error - critical * (1 - 1 / (4 * freedom))
            power: Array = special.ndtr(beyond / np.sqrt(1 + critical**2 / (2 * freedom)))
        return power

    def needed(self, power: Array) -> list[int | None]:
        """Return for each pair the fewest seeds in all, above its rounds, of enough power.

        None: more than 100, or unknown.
        """
        enough = (power >= POWER) & (self.rounds[:, None] < _SEEDS) & self.judged[:, None]
        return [int(_SEEDS[row.argmax()]) if row.any() else None for row in enough]


def differences(table: Array, copies: Collection[tuple[int, int]] = ()) -> Differences:
    """Return the differences between the rows of `table`, float64 [cells, rounds], nan: missing.

    A pair is judged by the rounds that both have. Its variance is shrunk towards the mean of all
    pairs' variances, as far as these are alike (Smyth 2004). copies: pairs of rows, the lower
    first, that do the same work: two rounds show them to be equal, and any others EQUAL of them.
    """
    pairs = np.array(list(combinations(range(len(table)), 2)), dtype=np.int64).reshape(-1, 2)
    first, second = pairs.T
    values = (table[second] - table[first]).T
    there = np.isfinite(values)
    order = np.argsort(~there, axis=0, kind="stable")  # a pair's rounds first
    values = np.take_along_axis(np.where(there, values, 0.0), order, axis=0)
    rounds = there.sum(axis=0)
    mean, variance, residuals = _moments(values, rounds)
    distinct = np.unique(np.nan_to_num(table, nan=np.inf), axis=0) if table.size else table
    pooled = _pooled_freedom(distinct)
    shrunk, freedom, prior = _moderated(variance, rounds, pooled)
    shrunk = np.where(shrunk > NOTHING**2, shrunk, np.nan)
    least = np.where([pair in copies for pair in zip(first, second, strict=True)], 2, EQUAL)
    equal = (rounds >= least) & (np.abs(mean) <= NOTHING) & (variance <= NOTHING**2)
    with np.errstate(divide="ignore", invalid="ignore"):
        error = np.where(equal, 0.0, np.sqrt(shrunk / rounds))
        mean = np.where(equal, 0.0, np.where(rounds > 0, mean, np.nan))
    return Differences(
        first=first, second=second, rounds=rounds, mean=mean, freedom=freedom, prior=float(prior),
        error=np.where(rounds > 1, error, np.nan), cells=len(distinct), residuals=residuals,
    )  # fmt: skip


def number(value: float) -> float | None:
    """Return a value as JSON can hold it: None where it is not finite."""
    return float(value) if math.isfinite(value) else None


def _moments(values: Array, rounds: Ints) -> tuple[Array, Array, Array]:
    """Mean and variance [..., pairs] and residuals of values [..., most rounds, pairs]."""
    inside = np.arange(values.shape[-2])[:, None] < rounds
    mean = np.where(inside, values, 0.0).sum(axis=-2) / np.maximum(rounds, 1)
    residuals = np.where(inside, values - mean[..., None, :], 0.0)
    variance = (residuals**2).sum(axis=-2) / np.maximum(rounds - 1, 1)
    return mean, variance, residuals


def _pooled_freedom(table: Array) -> float:
    """Degrees of freedom of the residuals of cell + round, which no pair can have more than."""
    there = np.isfinite(table)
    return float(there.sum() - there.any(axis=1).sum() - there.any(axis=0).sum() + 1)


def _moderated(variance: Array, rounds: Ints, pooled: float) -> tuple[Array, Array, Array]:
    """Variances [..., pairs] shrunk, their degrees of freedom, and those of the prior [...].

    The prior is Smyth's: how much the logs of the variances spread, beyond what so few rounds
    explain, says how alike the cells are. But what the others lend to a pair counts for no more
    than what it has shown itself, and where they are not alike a variance is raised only: else
    one noisy cell among quiet ones gives false verdicts (docs/method.md).
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
    lent = np.minimum(prior[..., None], own)
    freedom = np.maximum(own + lent, 1e-300)
    shrunk = (lent * mean[..., None] + own * variance) / freedom
    shrunk = np.where(lent < own, np.maximum(shrunk, variance), shrunk)
    return shrunk, np.maximum(np.minimum(freedom, pooled), own), prior


def _redrawn(seen: Differences, draws: int) -> Array:
    """Return t of each pair in each of so many redrawn studies: float64 [draws, pairs].

    A round is drawn whole, with all its pairs, and with either sign: no pair has a first by right.
    """
    generator = np.random.default_rng(0)
    most = len(seen.residuals)
    own = np.sqrt((seen.residuals**2).sum(axis=0) / np.maximum(seen.rounds, 1))
    wanted = np.where(seen.judged, seen.error, 0.0) * np.sqrt(seen.rounds)
    scaled = seen.residuals * (wanted / np.where(own > NOTHING, own, np.inf))
    where = generator.random((draws, most, 1))
    sign = generator.choice((-1.0, 1.0), (draws, most, 1))
    rows = (where * seen.rounds).astype(np.int64)
    values = np.take_along_axis(scaled[None], rows, axis=1) * sign
    mean, variance, _ = _moments(values, seen.rounds)
    shrunk, _, _ = _moderated(variance, seen.rounds, np.inf)
    with np.errstate(divide="ignore", invalid="ignore"):
        found = mean / np.sqrt(shrunk / seen.rounds)
    drawn: Array = np.where(np.isnan(found), np.inf, found)
    return drawn
