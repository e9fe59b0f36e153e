"""Timing in turns: how often it is wrong, how many rounds it takes.

`python -m pytest tests/long -m '' -s -k turns` prints the figures.
"""

from __future__ import annotations

import math

import numpy as np
import pytest

from ninefold.stats.differences import differences
from ninefold.stats.verdicts import Settings
from ninefold.tournament.budget import MOST_ROUNDS
from tests.long.test_statistics_at_length import say
from tests.report.studies import CELLS, compare
from tests.report.turns import Noise, play

pytestmark = pytest.mark.slow

NOISES = {
    "expected": Noise(),
    "processes twice as noisy": Noise(process=0.024),
    "turns twice as noisy": Noise(turn=0.03),
    "rounds twice as noisy": Noise(round=0.06),
    "heavy tails": Noise(tails=3),
    "one cell 10 % late": Noise(late=0.1),
    "one cell 20 % late": Noise(late=0.2),
    "one cell 40 % late": Noise(late=0.4),
}
MIXED = np.log([1, 1, 1, 1.01, 1.02, 1.03, 1.05, 1.1, 1.2])
# dp is a copy of none, as on a CPU.
COPIES = np.log([1, 1.25, 1.32, 1, 1.25, 1.32, 1.17, 1.43, 1.5])


@pytest.mark.parametrize("noise", NOISES)
def test_with_dropping_and_looks_nothing_is_called_different_where_nothing_differs(
    noise: str,
) -> None:
    rng, count = np.random.default_rng(0), 2000
    ended = [play([0.0] * 9, NOISES[noise].turns(rng, 9), stop=False) for _ in range(count)]
    false = sum(each.false for each in ended) / count
    lost = sum(any(each.found) for each in ended) / count
    say(f"null, {noise}", any_false=false, any_out=lost)
    assert false <= 0.055  # 5 %, known to half a percent


@pytest.mark.parametrize("process", [0.001, 0.01, 0.03])
@pytest.mark.parametrize("cells", [2, 3])
def test_nor_of_few_cells_in_one_process(cells: int, process: float) -> None:
    rng, count = np.random.default_rng(0), 2000
    turns = (Noise(process, turn=0.003).turns(rng, cells) for _ in range(count))
    ended = [play([0.0] * cells, each, "all", stop=False) for each in turns]
    false, held = np.mean([end.false for end in ended]), np.mean([end.held for end in ended])
    say(f"null, {cells} cells, sd {100 * process:g} %", any_false=float(false), held=float(held))
    assert false <= 0.055
    assert held >= 0.945


@pytest.mark.parametrize("noise", NOISES)
def test_the_named_cell_is_as_near_the_best_as_is_said(noise: str) -> None:
    rng, count, wrong, lost, settled = np.random.default_rng(0), 1000, 0, 0, []
    for _ in range(count):
        ended = play(rng.permutation(MIXED), NOISES[noise].turns(rng, 9))
        wrong += ended.rounds is not None and ended.named > math.log(1.02) + 1e-9
        lost += ended.lost
        settled.append(ended.rounds or math.inf)
    say(f"named, {noise}", wrong=wrong / count, best_out=lost / count)
    print(f"  median rounds {np.median(settled)}, settled {np.mean(np.isfinite(settled)):.2f}")
    assert wrong / count <= 0.05


@pytest.mark.parametrize(("sd", "mixed", "copies"), [(0.005, 6, 6), (0.01, 8, 8), (0.015, 12, 12)])
def test_so_many_rounds_name_the_best(sd: float, mixed: int, copies: int) -> None:
    noise, count = Noise(process=sd, turn=0.0), 300
    for name, truth, most in (("mixed", MIXED, mixed), ("copies", COPIES, copies)):
        rng, ends = np.random.default_rng(0), []
        for _ in range(count):
            ends.append(play(truth, noise.turns(rng, 9)))
        rounds = [each.rounds or 99 for each in ends]
        print(f"{name}, sd {100 * sd:g} %: rounds {np.percentile(rounds, [50, 80, 95])}")
        assert np.median(rounds) <= most


@pytest.mark.parametrize("turns", [5, 15])
@pytest.mark.parametrize("late", [0.1, 0.2, 0.4])
def test_intervals_hold_the_mean_of_a_cell_whose_turns_are_skewed(late: float, turns: int) -> None:
    """Its turns have an exponential tail, the others are quiet: 99 % intervals of the mean."""
    rng, noise, settings = np.random.default_rng(0), Noise(late=late), Settings(level=0.01)
    shares = []
    for rounds in (4, 8, 12, 20):
        held = []
        for _ in range(1000):
            taken = noise.turns(rng, 9, turns)[:, :rounds].mean(axis=2).tolist()
            values = {cell: dict(enumerate(row)) for cell, row in zip(CELLS, taken, strict=True)}
            held += [
                pair.low <= 1 <= pair.high
                for pair in compare(values, {}, settings).seconds
                if pair.second == CELLS[-1] and pair.low is not None and pair.high is not None
            ]
        say(f"99 % intervals, {late:.0%} late, {turns} turns, {rounds} rounds", held=np.mean(held))
        shares.append(np.mean(held))  # of 1,000 studies: known to half a percent
    assert np.mean(shares) >= 0.98


@pytest.mark.parametrize(
    ("noise", "median"),
    [("expected", 6), ("processes twice as noisy", 12), ("turns twice as noisy", 8)],
)
def test_in_so_many_rounds_a_cell_that_is_3_percent_slower_is_found(
    noise: str, median: int
) -> None:
    rng, truth = np.random.default_rng(0), [0.0] * 8 + [math.log(1.03)]
    ends = [play(truth, NOISES[noise].turns(rng, 9), stop=False) for _ in range(300)]
    found = [each.found[8] or 99 for each in ends]
    print(f"3 % slower, {noise}: rounds {np.percentile(found, [50, 80, 95])}")
    assert np.median(found) <= median


def test_the_noise_is_that_of_the_components() -> None:
    table = np.log(Noise().turns(np.random.default_rng(0), 500).mean(axis=2))
    own = table - table.mean(axis=0)
    assert own.std() == pytest.approx(math.hypot(0.012, 0.015 / math.sqrt(5)), rel=0.03)
    assert differences(table[:3]).rounds.tolist() == [MOST_ROUNDS] * 3
