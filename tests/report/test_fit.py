"""The fit of times: what it makes of processes and turns, and that its promises hold."""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy import special

from ninefold.stats.fit import OF_FEW, PROCESS, differences, fit, of_seconds
from ninefold.stats.looks import level_at, shares_of
from ninefold.stats.statistics import compare
from ninefold.stats.verdicts import FAILED, Settings
from tests.report.studies import Array
from tests.report.turns import Noise, play

NINE = np.log([1, 1.25, 1.32, 1, 1.25, 1.32, 1.17, 1.43, 1.5])


def logs(cells: int = 4, rounds: int = 8, sd: float = 0.02) -> Array:
    found: Array = sd * np.random.default_rng(0).standard_normal((cells, rounds))
    return found


def without_turns(table: Array) -> tuple[Array, Array, Array]:
    return table, np.ones_like(table), np.full_like(table, np.nan)


def test_with_all_cells_in_all_rounds_a_difference_is_the_mean_of_the_paired_differences() -> None:
    table = logs()
    moved = table + np.arange(8)  # what all cells of a round share
    for each in (table, moved):
        seen = differences(fit(*without_turns(each)))
        apart = (table[seen.second] - table[seen.first]).mean(axis=1)
        assert seen.mean == pytest.approx(apart)


def test_a_process_of_many_turns_counts_more_than_one_of_few() -> None:
    table = np.array([[0.0, 0.0], [0.0, 0.5]])
    counts, spread = np.array([[100.0, 100.0], [100.0, 2.0]]), np.full((2, 2), 0.1)
    seen = differences(fit(table, counts, spread))
    assert 0 < seen.mean[0] < 0.2


def test_before_rounds_show_more_processes_differ_by_the_prior() -> None:
    for rounds, prior in ((1, OF_FEW), (3, PROCESS)):
        table = np.array([[0.0] * rounds, [0.0] * (rounds - 1) + [np.nan]])
        seen = fit(table[:, :rounds], np.full_like(table, 9), np.full_like(table, 1e-9))
        assert 0.3 * prior < seen.between < 1.01 * prior
    many = fit(*without_turns(logs(9, 12, sd=0.005)))
    assert many.between == pytest.approx(0.005, rel=0.2)


def test_a_noisier_cell_has_wider_intervals_and_the_others_do_not() -> None:
    table = logs(9, 8, sd=0.005)
    quiet = differences(fit(*without_turns(table)))
    table[8] *= 20
    seen = differences(fit(*without_turns(table)))
    of_last = seen.second == 8
    assert (seen.error[of_last] > 3 * quiet.error[of_last]).all()
    assert np.median(seen.error[of_last]) > 1.3 * np.median(seen.error[~of_last])


def on_a_gpu(rng: np.random.Generator) -> Array:
    """Times of turns of three cells that the GPU limits and of four that wait for the host."""
    limited = Noise(process=0.001, turn=0.003).turns(rng, 3, 15)
    waiting = Noise(process=0.02, turn=0.08).turns(rng, 4, 15)
    return np.concatenate([limited, waiting])


def test_quiet_cells_are_compared_by_their_own_rounds_and_the_others_as_without_them() -> None:
    turns = on_a_gpu(np.random.default_rng(0))[:, :3]
    mean = turns.mean(axis=2)
    known = np.log(mean), np.full_like(mean, 15), turns.var(axis=2, ddof=1) / mean**2
    every, alone = differences(fit(*known)), differences(fit(*(each[:3] for each in known)))
    quiet = every.second < 3
    assert every.reach(0.05)[quiet] == pytest.approx(alone.reach(0.05))
    assert every.reach(0.05)[quiet].max() < 0.01
    assert every.reach(0.05)[~quiet].min() > 0.02


def test_cells_that_no_round_links_are_not_compared() -> None:
    nan = np.nan
    table = np.array([[0.0, 0.1, nan, nan], [nan, 0.0, 0.2, nan], [nan, nan, nan, 0.3]])
    seen = differences(fit(*without_turns(table)))
    known = {
        (i, j): k for i, j, k in zip(seen.first, seen.second, np.isfinite(seen.mean), strict=True)
    }
    assert known == {(0, 1): True, (0, 2): False, (1, 2): False}


def copied(off: float) -> tuple[dict[str, dict[int, float]], list[tuple[str, str]]]:
    """none, dp that does the same and takes `off` longer, and ddp."""
    table = np.exp(logs(3, 8, sd=0.004) + np.array([[0.0], [off], [0.1]]))
    names = ("none", "dp", "ddp")
    seconds = {name: dict(enumerate(row)) for name, row in zip(names, table.tolist(), strict=True)}
    return seconds, [("none", "dp")]


def test_copies_are_averaged_where_others_are_compared_with_them() -> None:
    seconds, controls = copied(0.0)
    found = {(p.first, p.second): p for p in compare(seconds, {}, Settings(), controls).seconds}
    assert found["none", "ddp"].speedup == found["dp", "ddp"].speedup
    assert found["none", "ddp"].adjusted == found["dp", "ddp"].adjusted
    alone = {(p.first, p.second): p for p in compare(seconds, {}, Settings()).seconds}
    assert alone["none", "ddp"].speedup != alone["dp", "ddp"].speedup
    assert (found["none", "ddp"].adjusted or 1) < (alone["none", "ddp"].adjusted or 0)


def test_copies_whose_control_fails_are_not_averaged() -> None:
    seconds, controls = copied(0.06)
    found = compare(seconds, {}, Settings(), controls)
    assert found.control is not None
    assert found.control.state == FAILED
    pairs = {(pair.first, pair.second): pair for pair in found.seconds}
    assert pairs["none", "ddp"].speedup != pairs["dp", "ddp"].speedup


def test_the_turns_of_a_process_say_how_well_its_mean_is_known() -> None:
    seconds = {"a": {0: 1.0}, "b": {0: 1.2}}

    def error(spread: float) -> float:
        turns = {name: {0: [of[0] * (1 - spread), of[0] * (1 + spread)]} for name, of in
                 seconds.items()}  # fmt: skip
        return float(differences(of_seconds(seconds, turns)).error[0])

    assert error(0.2) > 2 * error(0.01)


@pytest.mark.parametrize("shares", [[0.4, 0.6, 1.0], [1.0], [0.5, 1.0, 1.0, 1.0], [0.9, 0.3, 1.0]])
def test_all_looks_together_have_the_level(shares: list[float]) -> None:
    levels = [level_at(shares[: n + 1], 0.05) for n in range(len(shares))]
    assert min(levels) >= 0
    rng, at, before, passed = np.random.default_rng(0), np.zeros(200_000), 0.0, 0.0
    ever = np.zeros(len(at), dtype=bool)
    for share, level in zip(shares, levels, strict=True):
        now = max(share, before)
        if now == before and share == 1.0:
            passed += level  # after the time was up: each look has a part of its own
            continue
        at, before = at + math.sqrt(now - before) * rng.standard_normal(len(at)), now
        ever |= 2 * special.ndtr(-np.abs(at) / math.sqrt(now)) <= level
    assert ever.mean() + passed == pytest.approx(0.05, abs=0.003)


def test_looks_that_share_rounds_cost_less_than_looks_that_do_not() -> None:
    shares = [0.5, 0.7, 0.85, 1.0]
    alone = 0.95 * 0.05 * (1 - 0.85**2)
    assert level_at(shares, 0.05) > 1.5 * alone


def test_what_is_said_between_looks_is_said_as_at_the_end() -> None:
    looks = {3: 0.4, 4: 0.5}
    assert shares_of(looks, 4) == (0.4, 0.5)
    assert shares_of(looks, 5) == (0.4, 0.5, 1.0)
    assert shares_of({}, 2) == (1.0,)


def test_in_few_of_60_studies_is_a_verdict_false_at_any_look_and_intervals_hold_in_all() -> None:
    rng, count = np.random.default_rng(0), 60
    ends = [play([0.0] * 9, Noise().turns(rng, 9), "all", stop=False) for _ in range(count)]
    assert sum(end.false for end in ends) / count <= 0.05
    assert np.mean([end.held for end in ends]) >= 0.95
    apart = [play(NINE, Noise().turns(rng, 9), "all", stop=False) for _ in range(count)]
    assert np.mean([end.held for end in apart]) >= 0.95
