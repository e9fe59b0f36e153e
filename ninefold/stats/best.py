"""Bounds how far each cell is from the best: multiple comparisons with the best (Hsu 1984)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from ninefold.stats import student
from ninefold.stats.differences import Differences
from ninefold.stats.needed import OF_BEST, number_needed
from ninefold.stats.student import Array
from ninefold.stats.verdicts import Name, Settings


@dataclass(frozen=True)
class Standing:
    """What is known of each candidate, against the best of them.

    lead: the candidate whose greatest estimated gap behind another one is the smallest
    chance: by candidate, the confidence that it is within `Settings.same` of the best
    out: the candidates that are shown not to be the best
    """

    lead: Name
    chance: Mapping[Name, float]
    out: Sequence[Name]


def standing(
    names: Sequence[Name],
    looks: Sequence[tuple[Differences, Settings]],
    candidates: Sequence[Name],
    floor: float = 0.0,
) -> Standing:
    """Return how the candidates stand against the best of them; what a look has shown stays.

    Let k be the best, whichever it is. One-sided bounds on what each other candidate is behind k
    hold together at this look's part of `Settings.level`, divided by their number. Where they hold,
    k is not out, and each candidate is no farther behind k than its bound. So the claim holds for a
    candidate that was chosen by the same data, and those that are out need not be considered
    (Edwards and Hsu 1983).

    names: of the rows that the differences were computed from
    looks: the differences of the logarithms of a measure of which less is better, and the settings,
        at each look
    floor: the noise floor, a share; a difference below it shows nothing, unless it is a tie
    """
    found = [_at_look(names, *each, candidates, floor) for each in looks]
    chance = {cell: max(each.chance[cell] for each in found) for cell in candidates}
    out = {cell for each in found for cell in each.out}
    leads = (each.lead for each in reversed(found) if each.lead not in out)
    lead = next(leads, found[-1].lead)
    out -= {lead}
    return Standing(lead, chance, [cell for cell in candidates if cell in out])


def _at_look(
    names: Sequence[Name],
    seen: Differences,
    settings: Settings,
    candidates: Sequence[Name],
    floor: float,
) -> Standing:
    """What one look shows, as of `standing`."""
    # Matrices [candidate, candidate]: of the row, held against the column.
    rows = [names.index(cell) for cell in candidates]
    gap = _square(seen, seen.mean, len(names), turned=-1.0)[np.ix_(rows, rows)]
    near = _level(seen, names, rows, settings, np.log1p(settings.same))
    ahead = _level(seen, names, rows, settings, 0.0)
    if floor > 0:
        unclear = np.abs(gap) <= np.log1p(floor)
        ahead[unclear] = 1.0
        near = np.where(unclear, np.maximum(near, near.T), near)
    np.fill_diagonal(ahead, 1.0)
    beaten = ahead.min(axis=0)  # by column: the smallest level at which it is not the best
    # At which the row is within `same` of the column, or that one is not the best.
    open_to = np.minimum(near, beaten)
    np.fill_diagonal(open_to, 0.0)
    behind = np.where(np.isnan(gap), np.inf, gap)
    np.fill_diagonal(behind, 0.0)
    lead = candidates[int(behind.max(axis=1).argmin())]
    return Standing(
        lead=lead,
        chance=dict(zip(candidates, (1 - open_to.max(axis=1)).tolist(), strict=True)),
        out=[
            cell
            for cell, level in zip(candidates, beaten, strict=True)
            if level <= settings.level and cell != lead
        ],
    )


def rounds_needed(
    names: Sequence[Name],
    seen: Differences,
    candidates: Sequence[Name],
    lead: Name,
    settings: Settings,
    made: int,
    most: int,
) -> int | None:
    """Return after how many rounds in all `lead` would be shown to be within `same` of the best.

    None: after more than `most`. names, seen, candidates: as of `standing`. made: rounds so far, of
    which a pair may have less. It is right in nine of ten cases (benchmarks/log/statistics.md).
    """
    row = names.index(lead)
    tests = max(len(candidates) - 1, 1)
    level = settings.level_of_look(tests) / tests
    reach = student.quantile(level, seen.freedom) * seen.error
    behind, half, now = (
        _square(seen, values, len(names), turned)[row]
        for values, turned in (
            (seen.mean, -1.0),
            (reach, 1.0),
            (seen.rounds.astype(np.float64), 1.0),
        )
    )
    near = np.log1p(settings.same)
    needed = [
        number_needed(int(now[i]), half[i], near - behind[i], most, OF_BEST, made)
        for i in map(names.index, candidates)
        if i != row
    ]
    known = [each for each in needed if each is not None]
    return max(known, default=None) if len(known) == len(needed) else None


def _level(
    seen: Differences, names: Sequence[Name], rows: Sequence[int], settings: Settings, most: float
) -> Array:
    """The smallest level at which row i is shown to be behind row j by less than `most`.

    Negative: ahead of it. float64 [candidates, candidates], 1 where nothing shows it.
    """
    gap, error, freedom = (
        _square(seen, values, len(names), turned)[np.ix_(rows, rows)]
        for values, turned in ((seen.mean, -1.0), (seen.error, 1.0), (seen.freedom, 1.0))
    )
    tests = max(len(rows) - 1, 1)
    with np.errstate(divide="ignore", invalid="ignore"):
        p = student.above((most - gap) / error, freedom)
        level = p * tests * settings.level / settings.level_of_look(tests)
    found: Array = np.where(np.isnan(level), 1.0, np.minimum(level, 1.0))
    return found


def _square(seen: Differences, values: Array, size: int, turned: float) -> Array:
    """Return what a pair has, as [i, j]: the row i compared with the row j; nan on the diagonal.

    turned: by what it is multiplied if the pair is taken in its other order
    """
    found = np.full((size, size), np.nan)
    found[seen.second, seen.first] = values
    found[seen.first, seen.second] = turned * values
    return found
