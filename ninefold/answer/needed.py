"""How many rounds, or seeds, would decide what is open, if its mean and noise stay as they are.

Where it is said, it is so in nine of ten cases (benchmarks/log/statistics.md).
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any

from ninefold.answer.decision import Decision
from ninefold.stats.best import rounds_needed
from ninefold.stats.needed import OF_SEEDS, number_needed
from ninefold.stats.verdicts import Pair, Safety, Settings
from ninefold.tournament.budget import MAX_ROUNDS, MOST_ROUNDS
from ninefold.types import LEAST_ROUNDS


def rounds_for_side(pair: Pair, limit: float, made: int) -> int | None:
    """Return how many rounds in all would show on which side of `limit` a speedup is.

    None: more than are made. made: so far, of which the pair may have less.
    """
    if not pair.speedup or not pair.low or not pair.high or pair.rounds < LEAST_ROUNDS:
        return None
    half = math.log(pair.high / pair.low) / 2
    distance = abs(math.log(pair.speedup / limit))
    return number_needed(pair.rounds, half, distance, MAX_ROUNDS, made=made)


def rounds_for_pair(pair: Pair, same: float, made: int) -> int | None:
    """Return how many rounds in all would show that a pair differs, or that it ties within `same`,
    whichever is nearer; None: more than are made. made: as of `rounds_for_side`.
    """
    if pair.speedup is None:
        return None
    tie = (1 + same) ** math.copysign(1, pair.speedup - 1)
    limit = max(1.0, tie, key=lambda end: abs(math.log((pair.speedup or 1.0) / end)))
    return rounds_for_side(pair, limit, made)


def rounds_for_best(found: Decision[Any], made: int) -> int | None:
    """Return how many rounds in all would show that the one that is named is the best.

    None: more than a study makes, or scores are open. made: so far, of which a pair may have less.
    """
    if found.named is None or found.unscored:
        return None
    left = [
        name
        for name in found.candidates
        if name in found.may_be or found.facts.verdict(found.named, name) == "tie"
    ]
    names = list(found.facts.seconds)
    seen, settings = found.facts.comparison.looks[-1]
    return rounds_needed(names, seen, left, found.named, settings, made, MOST_ROUNDS)


def seeds_for_scores(
    tests: Iterable[Safety], settings: Settings, made: int, most: int
) -> int | None:
    """Return how many seeds in all would show that these keep the score; None: `most` do not.

    made: so far, of which a test may have less.
    """
    sign, needed = 1 if settings.better == "more" else -1, 0
    for test in tests:
        if test.difference is None or test.low is None:
            return None
        half, room = abs(test.difference - test.low), sign * test.difference + settings.margin
        found = number_needed(test.n, half, room, most, OF_SEEDS, made)
        if found is None:
            return None
        needed = max(needed, found)
    return needed or None
