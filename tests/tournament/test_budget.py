"""How the time of a comparison is divided: functions of what is known."""

from __future__ import annotations

import random
from typing import Any

import pytest

from ninefold.api.session import steps_budget
from ninefold.bench.engine import budget_of as bench_budget
from ninefold.study.timing import budget_of
from ninefold.tournament.budget import Budget, blocks_of_round
from ninefold.tournament.plan import stretch_steps, turn_counts


def study_budget(seconds: float, **own: Any) -> Budget:
    return budget_of({"turns": "auto", "pairs": "best", "time_budget": seconds / 60, **own})


BUDGETS = {"study": study_budget, "steps": steps_budget, "bench": bench_budget}


def test_rounds_fill_the_budget_or_train_as_long_as_their_start_takes_if_enough_remain() -> None:
    assert study_budget(180).planned(overhead=2) == 30  # 6 rounds
    assert study_budget(240, pairs="all").planned(overhead=2) == 30  # 8 rounds
    assert study_budget(180).planned(overhead=18) == 36  # of which 18 are training
    assert study_budget(48).planned(overhead=18) == 24  # 2 rounds
    assert study_budget(0.0).planned(overhead=9) > 0


def test_rounds_of_fewer_cells_are_shorter_unless_their_start_takes_half_of_them() -> None:
    budget = study_budget(180)
    assert budget.planned(overhead=1, share=1 / 3) == 10
    assert budget.planned(overhead=8, share=1 / 3) == 16
    assert budget.round_seconds(3, left=90, overhead=1, share=1 / 3) == 10
    assert budget.round_seconds(7, left=90, overhead=1, share=1 / 3) == 18


def test_a_long_stretch_has_at_least_40_steps_or_4_seconds_and_a_second() -> None:
    assert [stretch_steps(s) for s in (0.002, 0.05, 0.2, 5.0)] == [500, 40, 20, 1]


def test_turns_are_in_proportion_to_one_over_the_root_of_their_seconds() -> None:
    assert turn_counts({"short": 0.1, "long": 0.4}, training=3.0) == {"short": 10, "long": 5}
    assert turn_counts({"short": 3.0, "long": 9.0}, training=1.0) == {"short": 2, "long": 2}


def test_a_round_has_no_more_turns_than_can_be_listed_however_long_it_is() -> None:
    assert turn_counts({"a": 0.1}, training=1e9) == {"a": 100_000}


@pytest.mark.parametrize("name", BUDGETS)
def test_whatever_is_known_no_round_begins_once_the_time_is_up_but_one_that_may_be_late(
    name: str,
) -> None:
    draw = random.Random(name)
    for _ in range(2000):
        budget = BUDGETS[name](10 ** draw.uniform(0, 4))
        last = 10 ** draw.uniform(-1, 4)
        least = draw.choice([None, last * draw.random()])
        planned = budget.planned(last * draw.random(), draw.uniform(0.1, 1))
        done = draw.randrange(0, 21)
        assert budget.fits(0, 0.0, last, least, planned)
        if done >= budget.least:
            assert not budget.fits(done, 0.0, last, least, planned)
            assert budget.fits(done, 1e9, last, least, planned)


@pytest.mark.parametrize("name", BUDGETS)
def test_whatever_is_known_a_round_is_no_longer_than_what_is_left_or_than_it_may_be(
    name: str,
) -> None:
    draw = random.Random(name)
    for _ in range(2000):
        budget = BUDGETS[name](10 ** draw.uniform(0, 4))
        left, overhead = budget.seconds * draw.random(), 10 ** draw.uniform(-1, 3)
        seconds = budget.round_seconds(draw.randrange(12), left, overhead, draw.uniform(0.1, 1))
        assert 0 < seconds <= max(left, budget.seconds / budget.least) or left == 0


def test_a_second_round_of_a_study_is_made_if_it_ends_at_most_half_a_minute_late() -> None:
    budget = study_budget(180)  # of which 65 s are left after the first round
    assert budget.fits(1, left=65, last=115, least=95, planned=90)
    assert not budget.fits(1, left=65, last=115, least=96, planned=90)


@pytest.mark.parametrize("fit", [1, 23, 24, 41, 100, 3001])
def test_there_are_10_to_20_rounds_of_an_even_number_of_blocks_where_enough_fit(fit: int) -> None:
    blocks = blocks_of_round(fit)
    assert blocks == 1 or blocks % 2 == 0
    assert fit < 24 or 10 <= fit // blocks <= 20


def test_a_round_has_no_more_blocks_than_can_be_listed_however_many_fit() -> None:
    assert blocks_of_round(10**15) == 100_000


def test_long_stretches_take_a_share_of_the_time_and_the_next_in_order_waits_for_its_round() -> (
    None
):
    budget, takes = study_budget(100), {"a": 2.0, "b": 2.0, "c": 2.0}
    assert budget.stretches("abc", takes, 0, 0.0, 80.0, None) == (["a", "b"], 4.0)
    assert budget.stretches("cab", takes, 1, 4.0, 120.0, None) == (["c"], 2.0)
    assert budget.stretches("ab", takes, 2, 6.0, 120.0, "a") == (["a"], 2.0)
