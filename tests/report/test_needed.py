"""How many rounds or seeds would decide what is open: where it is said, it is so in 9 of 10."""

import math

import numpy as np

from ninefold.stats.best import rounds_needed, standing
from ninefold.stats.differences import Differences, of_times
from ninefold.stats.needed import OF_SEEDS, number_needed
from ninefold.stats.verdicts import OPEN, Settings
from tests.report.studies import compare

CELLS, TURNS, MOST = range(4), 6, 72


def test_the_rounds_that_would_name_the_best_do() -> None:
    rng, given, right = np.random.default_rng(0), 0, 0
    for _ in range(150):
        behind, noise = np.append(0, rng.uniform(0, 0.12, 3)), rng.choice([0.05, 0.1, 0.2])
        turns = np.exp(noise * rng.standard_normal((4, MOST, TURNS)))
        process = rng.choice([0.01, 0.03]) * rng.standard_normal((4, MOST))
        logs = behind[:, None] + process + np.log(turns.mean(axis=2))

        def after(rounds: int, logs=logs) -> Differences:
            return of_times(logs[:, :rounds])

        def named(seen: Differences) -> bool:
            found = standing(CELLS, [(seen, Settings())], CELLS)
            return max(found.chance.values()) >= 0.95

        seen = after(4)
        found = standing(CELLS, [(seen, Settings())], CELLS)
        left = [cell for cell in CELLS if cell not in found.out]
        needed = rounds_needed(CELLS, seen, left, found.lead, Settings(), 4, MOST)
        if not named(seen) and needed:
            given, right = given + 1, right + named(after(needed))
    assert given >= 30
    assert right / given >= 0.82


def test_the_seeds_that_would_show_that_a_score_is_kept_do() -> None:
    rng, given, right = np.random.default_rng(0), 0, 0
    for _ in range(300):
        lost = np.append(0, rng.uniform(-0.3, 0.2, 1))
        scores = 75 + lost[:, None] + rng.choice([0.15, 0.3, 0.5]) * rng.standard_normal((2, 20))

        def safety(seeds: int, scores=scores):
            values = {
                cell: dict(enumerate(row[:seeds])) for cell, row in enumerate(scores.tolist())
            }
            return compare({}, values, Settings(baseline=0)).safety[0]

        test = safety(3)
        assert test.difference is not None
        assert test.low is not None
        half = test.difference - test.low
        needed = number_needed(3, half, test.difference + 0.5, 20, OF_SEEDS)
        if test.verdict == OPEN and needed:
            given, right = given + 1, right + (safety(needed).verdict != OPEN)
    assert given >= 50
    assert right / given >= 0.85


def test_no_number_is_given_where_the_mean_is_beyond_or_it_would_be_too_many() -> None:
    assert number_needed(3, 0.2, -0.1, 20) is None
    assert number_needed(3, math.inf, 0.5, 20) is None
    assert number_needed(3, 5.0, 0.5, 20) is None
