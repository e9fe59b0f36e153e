"""The best cell: what is said of it is true, whichever cell the data choose."""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy import stats

from ninefold.stats.best import standing
from ninefold.stats.differences import differences
from ninefold.stats.verdicts import Settings
from tests.report.turns import SETTINGS, Noise, play

MIXED = np.log([1, 1, 1, 1.01, 1.02, 1.03, 1.05, 1.1, 1.2])


def test_of_two_cells_the_chance_is_that_of_the_one_sided_t_test() -> None:
    logs = np.log([[1.0, 1.01, 0.99, 1.02], [1.005, 1.0, 1.0, 1.015]])
    seen = differences(logs)
    found = standing(["a", "b"], seen, ["a", "b"], Settings())
    apart = logs[0] - logs[1]
    statistic = (math.log(1.02) - apart.mean()) / (apart.std(ddof=1) / 2)
    assert found.chance["a"] == pytest.approx(1 - stats.t.sf(statistic, 3))
    assert found.lead == "a" if apart.mean() < 0 else "b"


def test_more_looks_make_it_less_sure() -> None:
    seen = differences(MIXED[:, None] + Noise().table(np.random.default_rng(0), 9)[:, :8])
    names = list("abcdefghi")
    one, seven = (standing(names, seen, names, Settings(looks=looks)) for looks in (1, 7))
    for cell in names:
        assert 1 - seven.chance[cell] == pytest.approx(min(7 * (1 - one.chance[cell]), 1))


def test_within_the_floor_of_a_failed_control_nothing_is_shown() -> None:
    logs = np.log([[1.0, 1.01, 0.99], [1.04, 1.0501, 1.03]])
    seen = differences(np.vstack([logs, logs[1] + [1e-4, -1e-4, 2e-4]]))
    names = ["a", "b", "c"]
    without = standing(names, seen, names, Settings())
    floored = standing(names, seen, names, Settings(), floor=0.06)
    assert without.chance["a"] > 0.9
    assert floored.chance["a"] == 0
    assert floored.out == []


def test_in_few_of_150_studies_is_anything_said_that_is_not_true() -> None:
    rng, count = np.random.default_rng(0), 150
    ends = [play(rng.permutation(MIXED), Noise().table(rng, 9)) for _ in range(count)]
    wrong = sum(end.rounds is not None and end.named > math.log(1.02) + 1e-9 for end in ends)
    assert wrong / count <= 0.05
    assert sum(end.false or end.lost for end in ends) / count <= 0.05
    assert sum(end.rounds is not None for end in ends) / count >= 0.5
    assert SETTINGS.looks == 7
