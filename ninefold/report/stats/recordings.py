"""Compares the seconds of the same cells in two recordings: Welch's test, with Holm."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from ninefold.stats import holm, student
from ninefold.stats.differences import NOTHING, Values, number
from ninefold.stats.student import Array
from ninefold.stats.verdicts import Name


@dataclass(frozen=True)
class Change:
    """The ratio of a cell's seconds in a new recording to those in an old one.

    Numbers are None if a recording has too few runs of the cell, or shows no noise.

    ratio: of the geometric means
    low, high: the interval of the ratio, at the level that Holm leaves to this cell
    adjusted: p of a ratio of 1 + allowed, two-sided, after Holm over the cells
    slower: whether the ratio is above 1 + allowed and `adjusted` at most the level
    """

    cell: Name
    ratio: float | None
    low: float | None
    high: float | None
    adjusted: float | None
    slower: bool


def changes(new: Values, old: Values, allowed: float, level: float = 0.05) -> list[Change]:
    """Return the change of each cell that both recordings have; their runs are not paired.

    Welch's test on the logarithms, of new / old against 1 + allowed (a share), with Holm over the
    cells.
    """
    cells = [cell for cell in new if cell in old]
    if not cells:
        return []
    parts = [_welch(_logs(new[cell]), _logs(old[cell])) for cell in cells]
    ratio, error, freedom = np.array(parts).T
    limit = math.log1p(allowed)
    p = 2 * student.above(np.abs(ratio - limit) / error, freedom)
    adjusted = holm.adjusted(p)
    reach = student.quantile(level / holm.divisors(p, level) / 2, freedom) * error
    return [
        Change(
            cell,
            number(np.exp(ratio[i])),
            number(np.exp(ratio[i] - reach[i])),
            number(np.exp(ratio[i] + reach[i])),
            number(adjusted[i]),
            slower=bool(adjusted[i] <= level and ratio[i] > limit),
        )
        for i, cell in enumerate(cells)
    ]


def _logs(values: Mapping[int, float]) -> Array:
    return np.log([value for value in values.values() if math.isfinite(value) and value > 0])


def _welch(new: Array, old: Array) -> tuple[float, float, float]:
    """Difference of the means, its standard error and degrees of freedom; nan if unknown."""
    if not len(new) or not len(old):
        return math.nan, math.nan, math.nan
    difference = float(new.mean() - old.mean())
    if min(len(new), len(old)) < 2:
        return difference, math.nan, math.nan
    parts = [float(logs.var(ddof=1)) / len(logs) for logs in (new, old)]
    if sum(parts) <= NOTHING**2:
        return difference, math.nan, math.nan
    own = sum(part**2 / (len(logs) - 1) for part, logs in zip(parts, (new, old), strict=True))
    return difference, math.sqrt(sum(parts)), sum(parts) ** 2 / own
