"""Statistics where their assumptions do not hold, and the figures of benchmarks/log/.

`python -m pytest tests/long -m '' -s -k statistics` prints them.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

import numpy as np
import pytest

from ninefold.answer.cell import Cell
from ninefold.stats.differences import differences
from ninefold.stats.looks import level_at
from ninefold.stats.verdicts import FAILED
from tests.report.studies import (
    CELLS,
    DDP_SCALER,
    DP,
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


def any_false(noise: Noise, levels: Mapping[int, float], count: int, cells: int = 9) -> float:
    """In which share of studies without differences a pair is called different.

    levels: of each look, by its rounds.
    """
    rng, found = np.random.default_rng(0), 0
    for _ in range(count):
        values = noise(rng, cells, max(levels))
        found += any(differences(values[:, :n]).p().min() <= level for n, level in levels.items())
    return found / count


@pytest.mark.parametrize("rounds", [2, 3, 5, 10])
@pytest.mark.parametrize("noise", NOISES)
def test_where_nothing_differs_nothing_is_called_different(noise: str, rounds: int) -> None:
    found = any_false(NOISES[noise], {rounds: 0.05 / 36}, 2000)
    say(f"null, {noise}, {rounds} rounds", any_false=found)
    assert found <= 0.05


@pytest.mark.parametrize("rounds", [3, 5])
@pytest.mark.parametrize("cells", [2, 3, 4, 6])
def test_nor_of_few_cells(cells: int, rounds: int) -> None:
    level = 0.05 / (cells * (cells - 1) / 2)
    for name, noise in NOISES.items():
        found = any_false(noise, {rounds: level}, 4000, cells)
        say(f"null, {cells} cells, {name}, {rounds} rounds", any_false=found)
        assert found <= 0.06


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
    rounds, level = (3, 4, 5, 7, 10), 0.05 / 36
    shares = [number / 10 for number in rounds]
    levels = {n: level_at(shares[: place + 1], level) for place, n in enumerate(rounds)}
    found = any_false(NOISES[noise], levels, 2000)
    say(f"5 looks, {noise}", any_false=found)
    assert found <= 0.05


def test_a_control_of_equal_cells_seldom_fails() -> None:
    controls = [(Cell("none", amp), Cell("dp", amp)) for amp in ("fp32", "autocast", "scaler")]
    count, failed = 2000, 0
    for study in Truth().studies(count):
        control = compare(*study, Settings(), controls).control
        failed += control is None or control.state == FAILED
    say("three pairs that compute the same", failed=failed / count)
    assert failed / count <= 0.065
