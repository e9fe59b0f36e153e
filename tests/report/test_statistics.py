"""Statistics: nothing is called different that is not, and what is, is found."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import TypeVar

import numpy as np
import pytest
from scipy import stats

from ninefold.answer.cell import Cell
from ninefold.stats import holm
from ninefold.stats.best import standing
from ninefold.stats.differences import differences, of_times
from ninefold.stats.statistics import estimate
from ninefold.stats.verdicts import Comparison, Difference, Pair, Values
from tests.report.studies import (
    CELLS,
    DDP,
    DDP_SCALER,
    DP,
    DP_AUTOCAST,
    DP_SCALER,
    NONE,
    NONE_SCALER,
    Settings,
    Truth,
    compare,
    noisy,
)

DIFFERENT = {"faster", "slower", "better", "worse"}
FAST, BAD = DDP_SCALER, DP_SCALER
Of = TypeVar("Of", Pair, Difference)
PLANTED = Truth(faster={FAST: math.log(1.05)}, lost={BAD: 1.5})


def verdicts(pairs: Sequence[Pair | Difference]) -> dict[tuple[str, str], str]:
    return {(pair.first, pair.second): pair.verdict for pair in pairs}


def find(pairs: Sequence[Of], first: str, second: str) -> Of:
    return next(pair for pair in pairs if (pair.first, pair.second) == (first, second))


def wrong(comparison: Comparison) -> bool:
    pairs = (*comparison.seconds, *comparison.score)
    return any(pair.verdict in DIFFERENT for pair in pairs)


def one(truth: Truth, seed: int = 0) -> tuple[Values, Values]:
    return next(truth.studies(1, seed))


def without(values: Values, *gone: tuple[str, int]) -> Values:
    return {
        cell: {round: x for round, x in row.items() if (cell, round) not in gone}
        for cell, row in values.items()
    }


def test_of_400_studies_in_which_nothing_differs_few_have_any_false_verdict() -> None:
    count = 400
    false = sum(wrong(compare(*study, Settings())) for study in Truth().studies(count))
    assert false / count <= 0.05


def test_a_planted_speed_up_and_a_planted_loss_are_found_and_nothing_else() -> None:
    count, faster, worse, unsafe, others = 150, 0, 0, 0, 0
    for study in PLANTED.studies(count):
        found = compare(*study, Settings())
        faster += find(found.seconds, NONE, FAST).verdict == "faster"
        worse += find(found.score, NONE, BAD).verdict == "worse"
        unsafe += next(s for s in found.safety if s.cell == BAD).verdict == "safe"
        others += any(
            pair.verdict in DIFFERENT
            for pairs, planted in ((found.seconds, FAST), (found.score, BAD))
            for pair in pairs
            if planted not in (pair.first, pair.second)
        )
    assert faster / count >= 0.95
    assert worse / count >= 0.95
    assert unsafe == 0
    assert others / count <= 0.05


def test_a_cell_has_its_mean_and_students_interval() -> None:
    found = estimate({0: 1.0, 1: 2.0, 2: 3.0, 3: math.nan})
    reach = stats.t.isf(0.025, 2) / math.sqrt(3)
    assert (found.n, found.mean, found.sd) == (3, 2.0, 1.0)
    assert (found.low, found.high) == pytest.approx((2 - reach, 2 + reach))
    assert estimate({4: 5.0}) == type(found)(1, 5.0, None, None, None)
    assert estimate({}) == type(found)(0, None, None, None, None)


def test_what_all_rounds_share_enters_no_verdict() -> None:
    seconds, accuracy = one(PLANTED)
    slow = {cell: {r: x * (1 + r) for r, x in row.items()} for cell, row in seconds.items()}
    there, moved = (compare(x, accuracy, Settings()).seconds for x in (seconds, slow))
    for a, b in zip(there, moved, strict=True):
        assert (a.verdict, a.low, a.high) == (b.verdict, *map(pytest.approx, (b.low, b.high)))


def test_the_order_of_the_cells_changes_no_verdict() -> None:
    seconds, accuracy = one(PLANTED)
    there = compare(seconds, accuracy, Settings())
    back = compare(*({c: x[c] for c in reversed(x)} for x in (seconds, accuracy)), Settings())
    for pair in there.seconds:
        turned = find(back.seconds, pair.second, pair.first)
        word = {"faster": "slower", "slower": "faster"}.get(pair.verdict, pair.verdict)
        assert turned.verdict == word
        assert turned.adjusted == pytest.approx(pair.adjusted)
        assert (turned.high or 0) * (pair.low or 0) == pytest.approx(1)
    assert {s.cell: s.verdict for s in there.safety} == {s.cell: s.verdict for s in back.safety}


def test_a_verdict_never_contradicts_its_interval() -> None:
    for study in Truth(noise=noisy(3, 4), faster=dict.fromkeys(CELLS[3:], 0.02)).studies(20):
        found = compare(*study, Settings())
        for pair in found.seconds:
            assert pair.low is not None
            assert pair.high is not None
            inside = pair.low >= 1 / 1.02 and pair.high <= 1.02
            assert (pair.verdict == "tie") == inside
            if pair.verdict in DIFFERENT:
                assert (pair.verdict == "faster") == (pair.low > 1)
                assert pair.low > 1 or pair.high < 1
        for cell in found.safety:
            assert (cell.verdict == "safe") == ((cell.low or -math.inf) > -0.5)


def test_a_difference_that_is_real_and_too_small_to_matter_is_a_tie() -> None:
    small = dict.fromkeys(CELLS[1:], 0.01)
    seconds, accuracy = one(Truth(rounds=60, faster=small))
    pair = find(compare(seconds, accuracy, Settings()).seconds, CELLS[0], CELLS[5])
    assert pair.adjusted is not None
    assert pair.adjusted < 0.05
    assert pair.verdict == "tie"
    strict = compare(seconds, accuracy, Settings(same=0.001))
    assert find(strict.seconds, CELLS[0], CELLS[5]).verdict == "faster"


def test_one_round_is_not_enough_for_anything() -> None:
    seconds, accuracy = one(replace(PLANTED, rounds=1))
    found = compare(seconds, accuracy, Settings(), [(NONE, DP)])
    assert {p.verdict for p in [*found.seconds, *found.score]} == {"open"}
    assert {s.verdict for s in found.safety} == {"open"}
    assert all(pair.p is None and pair.low is None for pair in found.seconds)
    assert all(pair.speedup is not None for pair in found.seconds)
    assert found.control is not None
    assert (found.control.state, found.control.low) == ("inconclusive", None)


def test_without_values_there_is_nothing_to_say() -> None:
    nothing = compare({}, {}, Settings())
    assert (nothing.seconds, nothing.score, nothing.safety) == ([], [], [])
    seconds, _ = one(Truth())
    found = compare(seconds, {}, Settings())
    assert len(found.seconds) == 36
    assert (found.score, found.safety) == ([], [])


def test_cells_that_give_the_same_number_each_time_are_a_tie_and_break_nothing() -> None:
    seconds, accuracy = one(PLANTED)
    same = {cell: accuracy[Cell("ddp", cell.amp)] for cell in CELLS}
    found = compare(seconds, same, Settings())
    pair = find(found.score, NONE, DP)
    assert (pair.difference, pair.low, pair.high, pair.p, pair.verdict) == (0, 0, 0, 1, "tie")
    assert next(s for s in found.safety if s.cell == DP).verdict == "safe"
    # Copies of a cell are no further evidence, and no further test.
    two = {cell: accuracy[NONE if cell.parallel != "none" else DP] for cell in CELLS}
    copied = find(compare({}, two, Settings()).score, NONE, DDP)
    alone = compare({}, {c: two[c] for c in (NONE, DDP)}, Settings()).score[0]
    assert (copied.p, copied.adjusted) == pytest.approx((alone.p, alone.adjusted))


def test_equal_numbers_in_two_rounds_are_chance_but_of_two_cells_that_do_the_same_work() -> None:
    one = {cell: {0: 70.0, 1: 71.0} for cell in (NONE, DP, DDP)}
    found = compare({}, one, Settings(), [(NONE, DP)])
    assert verdicts(found.score) == {(NONE, DP): "tie", (NONE, DDP): "open", (DP, DDP): "open"}
    assert {s.cell: s.verdict for s in found.safety} == {DP: "safe", DDP: "open"}
    three = {cell: {**row, 2: 72.0} for cell, row in one.items()}
    assert set(verdicts(compare({}, three, Settings()).score).values()) == {"tie"}


def test_cells_that_equal_a_third_in_its_only_seed_are_not_equal_in_their_others() -> None:
    rows = {
        NONE: {0: 70.0},  # its other seeds failed
        DP: {0: 70.0, 1: 71.0, 2: 72.0, 3: 71.5},
        DDP: {0: 70.0, 1: 66.0, 2: 67.2, 3: 66.4},
        FAST: {0: 50.0, 1: 51.1, 2: 52.0, 3: 51.6},
    }
    found = verdicts(compare({}, rows, Settings()).score)
    assert found[DP, DDP] == "open"
    assert found[DP, FAST] == "worse"


def test_a_cell_that_misses_rounds_is_compared_all_the_same() -> None:
    seconds, accuracy = one(replace(PLANTED, rounds=6))
    holes = without(seconds, (FAST, 0), (FAST, 3), (NONE, 5))
    found = compare({**holes, "failed": {}}, accuracy, Settings())
    pair = find(found.seconds, NONE, FAST)
    assert pair.rounds == 3
    assert pair.speedup == pytest.approx(1.05, rel=0.02)
    whole = find(found.seconds, DP, DP_AUTOCAST)
    assert whole.rounds == 6
    assert (whole.high or 9) / (whole.low or 1) < (pair.high or 0) / (pair.low or 1)
    failed = find(found.seconds, NONE, "failed")
    assert (failed.rounds, failed.speedup, failed.verdict) == (0, None, "open")
    zero = compare({**seconds, FAST: {**seconds[FAST], 0: 0.0, 1: math.nan}}, {}, Settings())
    assert find(zero.seconds, NONE, FAST).rounds == 4


def test_an_early_look_asks_more() -> None:
    seconds, accuracy = one(PLANTED)
    whole = compare(seconds, accuracy, Settings())
    early = Settings(shares=(0.4,), looks=5)
    part = compare(seconds, accuracy, early)

    def both(found: Comparison) -> list[Pair | Difference]:
        return [*found.seconds, *found.score]

    of_times = early.level / early.level_of_look(len(part.seconds))
    assert of_times > 5
    times = [of_times] * len(part.seconds) + [5] * len(part.score)
    for a, b, more in zip(both(whole), both(part), times, strict=True):
        assert b.adjusted == pytest.approx(min(1, more * (a.adjusted or 0)))
        assert (b.high or 0) - (b.low or 0) > (a.high or 0) - (a.low or 0)


def test_pairs_that_are_not_asked_for_cost_the_others_nothing() -> None:
    seconds, _ = one(PLANTED)
    named = {frozenset((NONE, other)) for other in (FAST, BAD)}
    all_, few = compare(seconds, {}, Settings()), compare(seconds, {}, Settings(asked=named))
    for a, b in zip(all_.seconds, few.seconds, strict=True):
        assert (a.speedup, a.rounds, a.p) == (b.speedup, b.rounds, b.p)
        if {a.first, a.second} not in named:
            assert b.verdict in ("open", "tie")
    p = sorted(find(few.seconds, NONE, other).p or 0 for other in (FAST, BAD))
    adjusted = sorted(find(few.seconds, NONE, other).adjusted or 0 for other in (FAST, BAD))
    assert adjusted == pytest.approx([2 * p[0], max(2 * p[0], p[1])])


def test_a_control_is_the_mean_over_all_pairs() -> None:
    seconds, _ = one(Truth())
    pairs = [(NONE, DP), (NONE_SCALER, DP_SCALER)]
    found = compare(seconds, {}, Settings(), pairs).control
    assert found is not None
    logs = [np.log(list(seconds[a].values())) - np.log(list(seconds[b].values())) for a, b in pairs]
    assert (found.rounds, found.pairs) == (5, pairs)
    assert found.speedup == pytest.approx(math.exp(np.mean(logs)))
    assert found.low is not None
    assert found.high is not None
    assert found.low < found.speedup < found.high


@pytest.mark.parametrize(
    ("off", "noise", "state"),
    [
        (0.0, 0.005, "passed"),
        (0.06, 0.005, "failed"),
        (0.0, 0.1, "inconclusive"),
        (0.06, 0.1, "inconclusive"),
    ],
)
def test_a_control_has_passed_has_failed_or_shows_neither(
    off: float, noise: float, state: str
) -> None:
    """The copies take `off` more of the time, a logarithm."""
    rng = np.random.default_rng(5)
    times = np.exp(0.03 * rng.standard_normal(6) + noise * rng.standard_normal((4, 6)))
    times[2:] *= math.exp(off)
    names = (NONE, NONE_SCALER, DP, DP_SCALER)
    seconds = {name: dict(enumerate(row)) for name, row in zip(names, times.tolist(), strict=True)}
    pairs = [(NONE, DP), (NONE_SCALER, DP_SCALER), (NONE, "missing")]
    found = compare(seconds, {}, Settings(), pairs).control
    assert found is not None
    assert found.state == state


def test_below_the_noise_floor_nothing_is_called_faster_or_slower_and_ties_stay() -> None:
    truth = Truth(rounds=40, faster=dict.fromkeys(CELLS[3:6], -0.03) | {DDP: 0.015})
    seconds, accuracy = one(truth)
    pairs = [(NONE, DP)]
    plain = verdicts(compare(seconds, accuracy, Settings()).seconds)
    found = compare(seconds, accuracy, Settings(), pairs)
    assert found.control is not None
    assert found.control.state == "failed"
    assert found.control.high is not None
    assert found.floor == pytest.approx(1 / found.control.high - 1)
    assert plain[NONE, DDP] == "faster"
    shown = verdicts(found.seconds)
    assert shown[NONE, DDP] == "below the noise floor"
    assert shown[NONE, NONE_SCALER] == plain[NONE, NONE_SCALER] == "tie"
    for pair in found.seconds:
        beyond = abs(math.log(pair.speedup or 1)) > math.log1p(found.floor)
        assert beyond or pair.verdict in ("below the noise floor", "open", "tie")


def test_equal_p_leave_equal_levels() -> None:
    p = np.array([0.01, 0.2, 0.01, np.nan, 0.01])
    assert holm.divisors(p, 0.05).tolist() == [4, 1, 4, 1, 4]
    assert holm.adjusted(p)[[0, 2, 4]].tolist() == [0.04] * 3


# The best cell: what is said of it is true, whichever cell the data choose


def test_of_two_cells_the_chance_is_that_of_the_one_sided_t_test() -> None:
    logs = np.log([[1.0, 1.01, 0.99, 1.02], [1.005, 1.0, 1.0, 1.015]])
    looks = [(of_times(logs), Settings())]
    found = standing(["a", "b"], looks, ["a", "b"])
    apart = logs[0] - logs[1]
    statistic = (math.log(1.02) - apart.mean()) / (apart.std(ddof=1) / 2)
    assert found.chance["a"] == pytest.approx(1 - stats.t.sf(statistic, 3))
    assert found.lead == ("a" if apart.mean() < 0 else "b")


def test_within_the_floor_of_a_failed_control_nothing_is_shown() -> None:
    logs = np.log([[1.0, 1.01, 0.99], [1.04, 1.0501, 1.03]])
    seen = differences(np.vstack([logs, logs[1] + [1e-4, -1e-4, 2e-4]]))
    names, looks = ["a", "b", "c"], [(seen, Settings())]
    without = standing(names, looks, names)
    floored = standing(names, looks, names, floor=0.06)
    assert without.chance["a"] > 0.9
    assert floored.chance["a"] == 0
    assert floored.out == []
