"""Times: what is made of rounds and looks, and that its promises hold."""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy import special, stats

from ninefold.stats import statistics
from ninefold.stats.best import standing
from ninefold.stats.looks import RESERVE, level_at, looks_until
from ninefold.stats.verdicts import FAILED, Pair, Settings, Timings
from tests.report.studies import Array, compare


def logs(cells: int = 4, rounds: int = 8, sd: float = 0.02) -> Array:
    found: Array = sd * np.random.default_rng(0).standard_normal((cells, rounds))
    return found


def in_seconds(table: Array, names: str = "abcdefghi") -> dict[str, dict[int, float]]:
    rows = np.exp(table).tolist()
    return {name: dict(enumerate(row)) for name, row in zip(names, rows, strict=False)}


def test_the_interval_of_two_commands_is_students_t_of_the_differences_by_round() -> None:
    table = logs(2, 6)
    (pair,) = compare(in_seconds(table), {}, Settings()).seconds
    apart = table[0] - table[1]
    low, high = stats.t.interval(0.95, 5, apart.mean(), apart.std(ddof=1) / math.sqrt(6))
    assert (pair.speedup, pair.low, pair.high) == pytest.approx(np.exp([apart.mean(), low, high]))
    assert (pair.verdict == "open") == (low <= 0 <= high)


@pytest.mark.parametrize("common", [1, 2])
def test_of_fewer_than_three_common_rounds_nothing_is_told(common: int) -> None:
    seconds = in_seconds(np.array([[0.0] * 4, [1.0] * 4]) + logs(2, 4, sd=1e-3))
    seconds["b"] = {number: seconds["b"][number] for number in range(common)}
    (pair,) = compare(seconds, {}, Settings()).seconds
    assert (pair.rounds, pair.low, pair.high, pair.verdict) == (common, None, None, "open")


def test_a_noisier_cell_has_wider_intervals_and_the_others_do_not() -> None:
    def widths(table: Array) -> dict[tuple[str, str], float]:
        pairs = compare(in_seconds(table), {}, Settings()).seconds
        return {(p.first, p.second): math.log((p.high or 0) / (p.low or 1)) for p in pairs}

    table = logs(9, 8, sd=0.005)
    quiet = widths(table)
    table[8] *= 20
    for pair, width in widths(table).items():
        assert width > 3 * quiet[pair] if "i" in pair else width == pytest.approx(quiet[pair])


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


def test_the_interval_that_is_told_is_in_those_of_all_looks_before() -> None:
    rounds, shares = (4, 8, 12), (0.5, 1.0, 1.5)
    looks = [
        Timings(in_seconds(logs(2, made) + np.array([[0.0], [0.03]])), shares=shares[: n + 1])
        for n, made in enumerate(rounds)
    ]
    least, most = 0.0, math.inf
    for count in range(len(looks)):
        (pair,) = statistics.compare(looks[: count + 1], {}, Settings()).seconds
        assert pair.low is not None
        assert pair.high is not None
        assert least <= pair.low <= (pair.speedup or 0) <= pair.high <= most
        least, most = pair.low, pair.high


def test_what_a_look_has_decided_stays_decided_and_out() -> None:
    clear = in_seconds(np.array([[0.0] * 4, [0.1] * 4]) + logs(2, 4, sd=1e-3))
    noisy = in_seconds(np.array([[0.0] * 12, [0.1] * 12]) + logs(2, 12, sd=0.5))
    looks = [Timings(clear, shares=(0.5,)), Timings(noisy, shares=(0.5, 1.0))]
    assert statistics.compare(looks[1:], {}, Settings()).verdict("a", "b") == "open"
    found = statistics.compare(looks, {}, Settings())
    assert found.verdict("a", "b") == "slower"
    assert standing(["a", "b"], found.looks, ["a", "b"]).out == ["b"]


def test_what_waits_for_the_host_is_compared_by_its_stretches_and_the_rest_by_turns() -> None:
    turns = in_seconds(np.array([[0.0], [0.1], [0.2]]) + logs(3, 6, sd=1e-3))
    alone = in_seconds(np.array([[0.0], [0.0], [0.2]]) + logs(3, 6, sd=1e-3))
    found = statistics.compare([Timings(turns, alone, waits=["b"])], {}, Settings())
    by_turns = compare(turns, {}, Settings())
    assert found.verdict("a", "b") == "tie"
    assert by_turns.verdict("a", "b") == "slower"
    assert found.pair("a", "c") == by_turns.pair("a", "c")


@pytest.mark.parametrize("shares", [[0.4, 0.6, 1.0], [1.0], [0.5, 1.0, 2.0, 3.0], [0.3, 0.9, 1.0]])
def test_all_looks_together_have_the_level_but_for_the_reserve(shares: list[float]) -> None:
    levels = [level_at(shares[: n + 1], 0.05) for n in range(len(shares))]
    rng, at, before = np.random.default_rng(0), np.zeros(200_000), 0.0
    ever = np.zeros(len(at), dtype=bool)
    for share, level in zip(shares, levels, strict=True):
        at, before = at + math.sqrt(share - before) * rng.standard_normal(len(at)), share
        ever |= 2 * special.ndtr(-np.abs(at) / math.sqrt(share)) <= level
    spent = 0.05 * (1 - RESERVE / max(shares[-1], 1.0))
    assert ever.mean() == pytest.approx(spent, abs=0.003)


def test_where_the_intervals_of_two_looks_have_nothing_in_common_the_earlier_look_stands():
    before = Pair("a", "b", 3, 0.98, 0.952, 1.008, 0.5, 0.5, "open")
    now = Pair("a", "b", 12, 1.1, 1.05, 1.15, 0.0, 0.0, "faster")
    found = now.after(before)
    assert (found.low, found.speedup, found.high, found.verdict) == (0.952, 1.008, 1.008, "open")


def test_what_is_said_between_looks_is_said_as_at_the_end() -> None:
    looks = {3: 0.4, 4: 0.5}
    assert [*looks_until(looks, 4)] == [(3, (0.4,)), (4, (0.4, 0.5))]
    assert [*looks_until(looks, 5)] == [(3, (0.4,)), (4, (0.4, 0.5)), (5, (0.4, 0.5, 1.0))]
    assert [*looks_until({}, 2)] == [(2, (1.0,))]
