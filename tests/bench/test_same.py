"""Bench says of each command whether it computes what the first does."""

from __future__ import annotations

import sys

import numpy as np
import pytest

from ninefold.bench.contestant import Command
from ninefold.bench.same import Same, Weights, same, sentences
from tests.conftest import Shell

SEEDED = """
import sys
import torch

torch.manual_seed(0)
torch.set_num_threads(1)
model = torch.nn.Sequential(torch.nn.Linear(32, 64), torch.nn.ReLU(), torch.nn.Linear(64, 10))
optimizer = torch.optim.AdamW(model.parameters(), float(sys.argv[1]))
while True:
    x = torch.randn(64, 32)
    optimizer.zero_grad()
    torch.nn.functional.cross_entropy(model(x), torch.arange(64) % 10).backward()
    optimizer.step()
"""


def training(end: float, seed: int = 0) -> Weights:
    """Weights that go from 0 to a value in 20 steps."""
    return {step: np.full(4, seed + end * step / 20) for step in range(21)}


def said(own: list[Weights], other: Weights, text: str = "a") -> str:
    commands = [Command(text, "A"), Command("b", "B"), Command("c", "C", twin="batch")]
    found = same(commands, {"A": dict(enumerate(own)), "B": {0: other}})
    return " ".join(sentences("A", found))


@pytest.mark.parametrize(
    ("own", "other", "words"),
    [
        ([training(1)], training(1), "B computes what A does in the first 20 steps, bit for bit."),
        ([training(1)] * 2, training(1.001), "B computes what A does, but for rounding: after 20"),
        (
            [training(1)],
            training(1.2),
            "Whether B computes what A does is not known: how two starts of A differ was not seen",
        ),
        ([training(1)] * 2, training(1.2), "B does not compute what A does: after 20 steps their"),
        ([training(1), training(1.1)], training(1.2), "Whether B computes what A does is not kno"),
        ([training(1), training(1.01)], training(1.2), "those of two starts of A by 1.00 %."),
        ([training(0)], training(0), ""),
        (
            [training(1)] * 2,
            training(np.nan),
            "differ by more than 1000 % of what A's have changed",
        ),
        ([training(np.nan)], training(np.nan), ""),
        ([training(1)], {0: np.zeros(3), 1: np.ones(3)}, ""),
    ],
)
def test_weights_are_held_against_those_of_two_starts_of_the_first(
    own: list[Weights], other: Weights, words: str
) -> None:
    assert words in said(own, other)
    assert bool(words) == bool(said(own, other))


def test_two_starts_with_seeds_of_their_own_are_no_spread() -> None:
    found = same([Command("a {seed}", "A")], {"A": {0: training(1), 1: training(1, seed=1)}})
    assert found == Same({}, None)


@pytest.mark.slow
def test_a_script_that_trains_otherwise_is_told_from_a_copy(shell: Shell) -> None:
    (shell.folder / "train.py").write_text(SEEDED)
    lines = [f"{sys.executable} train.py {rate}" for rate in ("1e-3", "1e-3", "2e-3")]
    done = shell.run("-m", "ninefold", "bench", "-v", "--minutes=1", *lines, code=0)
    assert "\nB computes what A does in the first " in done.stdout
    assert "\nC does not compute what A does: after " in done.stdout


TWO = """
import sys
import torch

torch.manual_seed(0)
torch.set_num_threads(1)
first, second = (torch.nn.Linear(8, 8) for _ in range(2))
rates = float(sys.argv[1]), 1e-3
groups = [{"params": []}, {"params": first.parameters()}], [{"params": second.parameters()}]
optimizers = [torch.optim.SGD(group, rate) for group, rate in zip(groups, rates)]
while True:
    loss = first(torch.randn(16, 8)).square().mean() + second(torch.randn(16, 8)).square().mean()
    loss.backward()
    for optimizer in optimizers:
        optimizer.step()
        optimizer.zero_grad()
"""


@pytest.mark.slow
def test_the_weights_of_all_optimizers_are_compared(shell: Shell) -> None:
    (shell.folder / "train.py").write_text(TWO)
    a, b = (f"{sys.executable} train.py {rate}" for rate in (1e-3, 1e-2))
    done = shell.run("-m", "ninefold", "bench", "-v", "--minutes=0.3", a, b)
    assert "B does not compute what A does: " in done.stdout
