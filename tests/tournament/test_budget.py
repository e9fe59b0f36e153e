"""How the time of a comparison is divided: functions of what is known."""

from __future__ import annotations

import random
from typing import Any

import pytest

from ninefold.api.session import steps_budget
from ninefold.bench.rounds import budget_of as bench_budget
from ninefold.study.timing import budget_of
from ninefold.tournament.budget import LATE, LEAST_ROUNDS, Budget, blocks_of_round
from ninefold.tournament.plan import Asked, common_start, offset, stretch_steps, turn_steps


def study_budget(seconds: float, **own: Any) -> Budget:
    return budget_of({"turns": "auto", "pairs": "best", "time_budget": seconds / 60, **own})


BUDGETS = {"study": study_budget, "steps": steps_budget, "bench": bench_budget}


def test_rounds_fill_the_time_or_train_as_long_as_their_start_takes_if_six_remain() -> None:
    assert bench_budget(120).planned(overhead=2) == 6  # 20 rounds
    assert bench_budget(120).planned(overhead=8) == 16  # of which 8 are training
    assert bench_budget(120).planned(overhead=15) == 20  # 6 rounds
    assert bench_budget(120).planned(overhead=40) == 50  # of which 10 are training
    assert study_budget(240, pairs="all").planned(overhead=2) == 30  # 8 rounds
    assert study_budget(0.0).planned(overhead=9) > 0


def test_rounds_of_fewer_cells_are_shorter_unless_their_start_takes_half_of_them() -> None:
    budget = study_budget(180)
    assert budget.planned(overhead=1, share=1 / 3) == 10
    assert budget.planned(overhead=8, share=1 / 3) == 16
    assert budget.round_seconds(3, left=90, overhead=1, share=1 / 3) == 10
    assert budget.round_seconds(7, left=90, overhead=1, share=1 / 3) == 18


def test_a_long_stretch_has_at_least_40_steps_or_4_seconds_and_a_second() -> None:
    assert [stretch_steps(s) for s in (0.002, 0.05, 0.2, 5.0)] == [500, 40, 20, 1]


def asked(*steps: float, several: bool = False, workers: int = 0) -> list[Asked]:
    """Of contestants of one process each; several: but for the last."""
    last = len(steps) - 1
    return [Asked(step, 0.1, several and n == last, workers) for n, step in enumerate(steps)]


def test_a_turn_has_the_steps_that_the_fastest_takes_in_its_seconds_and_one_of_each_worker() -> (
    None
):
    assert turn_steps(asked(0.01, 0.02), 120) == (4, 10)
    assert turn_steps(asked(0.01, 0.02, several=True), 120) == (15, 15)
    assert turn_steps(asked(0.1, 0.2), 120) == (1, 4)
    assert turn_steps(asked(0.1, 0.2, workers=8), 120) == (1, 8)


def test_steps_so_long_that_a_cycle_takes_the_time_are_few() -> None:
    assert turn_steps(asked(1.0, 4.0, workers=8), 120) == (1, 2)
    assert turn_steps(asked(9.0, 9.0), 120) == (1, 1)
    assert offset("seed", [9.0, 9.0], 120) == 0


def test_turns_of_speeds_far_apart_take_a_twelfth_of_the_time_and_their_lead_half_of_that() -> None:
    steps = 0.0003, 0.036, 0.036  # without reading, and two that wait for their data
    lead, timed = turn_steps(asked(*steps), 30)
    assert 1.25 - sum(steps) < lead * sum(steps) <= 1.25
    assert 2.5 - sum(steps) < timed * sum(steps) <= 2.5


def test_all_begin_with_the_one_that_has_taken_most_but_for_what_is_far_faster() -> None:
    assert common_start([11, 40, 40], 3) == 43
    assert common_start([31, 63, 4096], 3) == 66


def test_a_round_has_the_turns_that_are_asked_for_where_six_such_rounds_fit() -> None:
    budget = Budget(seconds=120, turns_at_least=12)
    assert [budget.count({"a": turn}, 1.0, 120, 0) for turn in (0.1, 3.0, 15.0)] == [12, 6, 2]


def test_the_steps_before_the_first_turn_are_drawn_up_to_fifteen() -> None:
    assert {offset(str(seed), [0.01], 120) for seed in range(400)} == {*range(16)}


@pytest.mark.parametrize("name", BUDGETS)
def test_whatever_is_known_turns_end_in_one_and_a_half_times_the_time_and_starts_of_a_bench(
    name: str,
) -> None:
    draw = random.Random(name)
    for _ in range(2000):
        budget = BUDGETS[name](10 ** draw.uniform(0, 4))
        overhead, turns = 10 ** draw.uniform(-1, 4), 10 ** draw.uniform(-1, 4)
        elapsed, done = budget.seconds * draw.uniform(0, 3), draw.randrange(1, 21)
        trained, share = elapsed * draw.random(), draw.uniform(0.1, 1)
        fits = budget.fits(done, elapsed, trained, overhead, overhead + turns, share)
        assert budget.fits(0, elapsed, trained, overhead, overhead + turns, 1.0)
        if fits and not budget.one_process:
            spent = elapsed + overhead if name == "bench" else trained
            assert spent + turns <= LATE * budget.seconds or done >= LEAST_ROUNDS
        if done >= LEAST_ROUNDS:
            assert not fits or elapsed < budget.seconds
            assert budget.fits(done, -1e9, 0.0, overhead, overhead + turns, 1.0)


@pytest.mark.parametrize("name", BUDGETS)
def test_whatever_is_known_a_round_is_no_longer_than_what_is_left(name: str) -> None:
    draw = random.Random(name)
    for _ in range(2000):
        budget = BUDGETS[name](10 ** draw.uniform(0, 4))
        left, overhead = budget.seconds * draw.random(), 10 ** draw.uniform(-1, 3)
        seconds = budget.round_seconds(draw.randrange(12), left, overhead, draw.uniform(0.1, 1))
        assert 0 < seconds <= left or left == 0


def test_a_round_has_an_even_number_of_turns_and_no_more_than_can_be_listed() -> None:
    budget = bench_budget(120)
    for training in (0.0, 1.0, 3.3, 20.0):
        assert budget.count({"a": 0.2, "b": 0.3}, training, 120, 0) % 2 == 0
    assert budget.count({"a": 0.2, "b": 0.3}, 0.0, 120, 0) == 2
    assert budget.count({"a": 0.1}, 1e9, 120, 0) == 100_000


@pytest.mark.parametrize("fit", [1, 23, 24, 41, 100, 3001])
def test_there_are_10_to_20_rounds_of_an_even_number_of_blocks_where_enough_fit(fit: int) -> None:
    assert blocks_of_round(10**15) == 100_000  # no more than can be listed
    blocks = blocks_of_round(fit)
    assert blocks == 1 or blocks % 2 == 0
    assert fit < 24 or 10 <= fit // blocks <= 20
