"""Statistics where their assumptions do not hold, and the figures of benchmarks/log/.

`python -m pytest tests/long -m '' -s -k statistics` prints them.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pytest
from scipy import stats

from ninefold.answer.cell import Cell
from ninefold.stats.differences import _moderated, _moments, differences
from ninefold.stats.verdicts import FAILED
from tests.report.studies import (
    CELLS,
    DDP_SCALER,
    DP,
    NONE,
    Array,
    Noise,
    Settings,
    Truth,
    compare,
    drifting,
    heavy,
    noisy,
    normal,
    skewed,
    together,
)
from tests.report.test_statistics import DIFFERENT, find

pytestmark = pytest.mark.slow

FAST = DDP_SCALER
NOISES = {
    "normal": normal,
    "heavy tails": heavy,
    "skewed": skewed,
    "ddp 4 times as noisy": noisy(3, 4),
    "one cell 4 times as noisy": noisy(1, 4),
    "one cell 10 times as noisy": noisy(1, 10),
    "drift within rounds": drifting,
    "ddp moved by rounds as others are not": together,
}


def say(what: str, **shares: float) -> None:
    print(f"{what}: " + ", ".join(f"{name} {100 * x:.1f} %" for name, x in shares.items()))


def null_p(
    noise: Noise, rounds: int, count: int, looks: Sequence[int] = (), cells: int = 9
) -> Array:
    """p of the scores of all pairs of many studies at once: float64 [studies, 36 per look]."""
    rng, found = np.random.default_rng(0), []
    first, second = np.triu_indices(cells, 1)
    values = np.array([noise(rng, cells, rounds) for _ in range(count)])
    apart = (values[:, second] - values[:, first]).swapaxes(1, 2)
    for so_far in looks or [rounds]:
        each = np.full(len(first), so_far)
        mean, variance = _moments(apart[:, :so_far], each)
        shrunk, freedom = _moderated(variance, each, (cells - 1) * (so_far - 1.0), cells)
        found.append(2 * stats.t.sf(np.abs(mean) / np.sqrt(shrunk / so_far), freedom))
    return np.concatenate(found, axis=1)


def test_many_studies_at_once_are_as_each_alone() -> None:
    p = null_p(normal, 5, 1)[0]
    table = normal(np.random.default_rng(0), 9, 5)
    assert p == pytest.approx(differences(table).p())


@pytest.mark.parametrize("rounds", [2, 3, 5, 10])
@pytest.mark.parametrize("noise", NOISES)
def test_where_nothing_differs_nothing_is_called_different(noise: str, rounds: int) -> None:
    false = float(np.mean(null_p(NOISES[noise], rounds, 2000).min(axis=1) <= 0.05 / 36))
    say(f"null, {noise}, {rounds} rounds", any_false=false)
    assert false <= 0.05


@pytest.mark.parametrize("rounds", [3, 5])
@pytest.mark.parametrize("cells", [2, 3, 4, 6])
def test_nor_of_few_cells(cells: int, rounds: int) -> None:
    level = 0.05 / (cells * (cells - 1) / 2)
    for name, noise in NOISES.items():
        false = float(np.mean(null_p(noise, rounds, 4000, cells=cells).min(axis=1) <= level))
        say(f"null, {cells} cells, {name}, {rounds} rounds", any_false=false)
        assert false <= 0.06


@dataclass(frozen=True)
class Found:
    """Shares of studies: faster than none-fp32, than all cells, worse than none-fp32, others."""

    faster: float
    fastest: float
    worse: float
    others: float


def found(truth: Truth, count: int) -> Found:
    """How often the last cell's planted effects are found, and others that are not there."""
    faster, fastest, worse, others = 0, 0, 0, 0
    for study in truth.studies(count):
        comparison = compare(*study, Settings())
        faster += find(comparison.seconds, NONE, FAST).verdict == "faster"
        fastest += all(
            find(comparison.seconds, cell, FAST).verdict == "faster" for cell in CELLS[:-1]
        )
        worse += find(comparison.score, NONE, FAST).verdict == "worse"
        others += any(
            pair.verdict in DIFFERENT
            for pair in (*comparison.seconds, *comparison.score)
            if pair.second != FAST
        )
    return Found(faster / count, fastest / count, worse / count, others / count)


def test_a_planted_speed_up_is_found() -> None:
    seen = found(Truth(faster={FAST: math.log(1.05)}), 2000)
    say("planted 5 %", than_none=seen.faster, than_all=seen.fastest, others=seen.others)
    assert seen.faster >= 0.95
    assert seen.worse + seen.others <= 0.05


def test_a_planted_loss_is_found() -> None:
    seen = found(Truth(lost={FAST: 1.5}), 2000)
    say("planted 1.5 points", worse=seen.worse, others=seen.others)
    assert seen.worse >= 0.95
    assert seen.faster + seen.others <= 0.05


def test_a_quiet_cell_among_noisy_ones_needs_more_rounds() -> None:
    for rounds in (5, 7, 10):
        truth = Truth(rounds=rounds, noise=noisy(3, 4), faster={DP: math.log(1.05)})
        hits = sum(
            find(compare(*study, Settings()).seconds, NONE, DP).verdict == "faster"
            for study in truth.studies(500)
        )
        say(f"planted 5 % with ddp 4 times as noisy, {rounds} rounds", found=hits / 500)
    assert hits / 500 >= 0.9


@pytest.mark.parametrize("level", [0.05, 0.05 / 7])
@pytest.mark.parametrize("noise", NOISES)
@pytest.mark.parametrize("rounds", [3, 5, 10])
def test_intervals_cover_the_truth(noise: str, rounds: int, level: float) -> None:
    rng, count, missed = np.random.default_rng(1), 500, []
    for _ in range(count):
        seen = differences(0.01 * NOISES[noise](rng, 9, rounds))
        missed.append(np.abs(seen.mean) > seen.reach(level))
    last = (seen.first == 8) | (seen.second == 8)
    every, of_last = float(np.mean(missed)), float(np.mean(np.array(missed)[:, last]))
    say(f"not covered at {level:.4f}, {noise}, {rounds} rounds", every=every, last_cell=of_last)
    assert max(every, of_last) <= 1.4 * level


@pytest.mark.parametrize(
    ("noise", "losing"),
    [("normal", CELLS[1:]), ("normal", [DP]), *((name, [FAST]) for name in NOISES)],
)
def test_a_loss_of_the_margin_is_seldom_called_safe(noise: str, losing: list[str]) -> None:
    count, false = 2000, 0
    for study in Truth(noise=NOISES[noise], lost=dict.fromkeys(losing, 0.5)).studies(count):
        safety = compare(*study, Settings()).safety
        false += any(one.verdict == "safe" for one in safety if one.cell in losing)
    say(f"loss of the margin in {len(losing)} cells, {noise}", any_called_safe=false / count)
    assert false / count <= 0.065


def test_a_difference_of_just_the_share_is_seldom_called_a_tie() -> None:
    count, quick = 1000, CELLS[5:]
    for apart in (0.02, 0.025, 0.03):
        ties, some = 0.0, 0
        for seconds, _ in Truth(faster=dict.fromkeys(quick, math.log1p(apart))).studies(count):
            pairs = compare(seconds, {}, Settings()).seconds
            tied = [p.verdict == "tie" for p in pairs if (p.first in quick) != (p.second in quick)]
            ties += sum(tied) / len(tied)
            some += any(tied)
        say(f"{apart} apart, called a tie", a_pair=ties / count, any_of_20=some / count)
        assert ties / count <= 0.035


@pytest.mark.parametrize("noise", NOISES)
def test_who_stops_at_the_first_difference_is_seldom_wrong(noise: str) -> None:
    least = null_p(NOISES[noise], 10, 2000, looks=(3, 4, 5, 7, 10)).min(axis=1)
    divided, whole = (float(np.mean(least <= 0.05 / 36 / looks)) for looks in (5, 1))
    say(f"5 looks, {noise}", divided=divided, not_divided=whole)
    assert divided <= 0.05


def test_a_control_of_equal_cells_seldom_fails() -> None:
    controls = [(Cell("none", amp), Cell("dp", amp)) for amp in ("fp32", "autocast", "scaler")]
    count, failed = 2000, 0
    for study in Truth().studies(count):
        control = compare(*study, Settings(), controls).control
        failed += control is None or control.state == FAILED
    say("three pairs that compute the same", failed=failed / count)
    assert failed / count <= 0.065
