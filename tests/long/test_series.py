"""A series of judgements keeps its promise: what is kept is seldom noise, what is true is kept."""

from __future__ import annotations

import re

import numpy as np
import pytest

from ninefold.bench.score import KEEP, MORE, Rule, judge
from ninefold.bench.series import level_of_next
from ninefold.types import SEEDS

pytestmark = pytest.mark.slow
SERIES, LENGTH = 20, 50


def kept_of_a_series(draw: np.random.Generator, gains: np.ndarray) -> list[bool]:
    """Which changes are kept, whose scores gain so many standard deviations."""
    kept = list[bool]()
    for gain in gains:
        rule = Rule(re.compile(""), "more", 0.5, level=level_of_next(kept))
        a, b = draw.standard_normal(SEEDS[-1]), gain + draw.standard_normal(SEEDS[-1])
        pairs = [*zip(a.tolist(), b.tolist(), strict=True)]
        said = (judge(pairs[:seeds], rule).verdict for seeds in SEEDS)
        kept.append(next((verdict for verdict in said if verdict != MORE), MORE) == KEEP)
    return kept


def test_a_series_of_null_changes_seldom_keeps_one() -> None:
    draw = np.random.default_rng(0)
    false = [any(kept_of_a_series(draw, np.zeros(LENGTH))) for _ in range(SERIES)]
    print(f"{sum(false)} of {SERIES} series of {LENGTH} null changes keep one")
    assert sum(false) <= 3  # 5 % of the series: with 20 of them at most 3 in 98 of 100 cases


def test_of_few_true_gains_some_are_kept_and_little_else() -> None:
    draw, false, true, there = np.random.default_rng(1), 0, 0, 0
    for _ in range(SERIES):
        gains = (draw.random(LENGTH) < 0.05).astype(float)
        kept = np.array(kept_of_a_series(draw, gains))
        false, true = false + int(kept[gains == 0].sum()), true + int(kept[gains > 0].sum())
        there += int(gains.sum())
    print(f"{true} of {there} true gains are kept, and {false} null changes")
    assert true >= 1
    assert false <= max(3, 0.2 * (true + false))
