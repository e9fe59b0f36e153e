"""Bench says of each command whether it computes what the first does."""

from __future__ import annotations

import sys

import pytest

from ninefold.bench.changes import PARTS
from ninefold.bench.command import Command
from ninefold.bench.measurements import Measurements
from ninefold.bench.notes import compared, of_first_steps
from ninefold.diff.compare import Training
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


def training(name: str, *losses: float, index: int = 0) -> Training:
    """One of a single step for each loss, of examples with these indices."""
    steps = []
    for loss in losses:
        gradient = [1, 0, 0, loss, loss**2, loss]
        entries = [
            ["input", "the network", "float32", 1, [1, 0, 0, 1, 1, 1 + index]],
            ["loss", "loss", "float32", 1, gradient],
            ["grad", "weight", "float32", 1, gradient],
        ]
        rank = {"micro": 1, "entries": entries, "examples": [["the network", [1.0]]]}
        rank |= {"data": [["Rows", [index]]], "rng": {}, "unrecorded": None, "rank": 0}
        steps.append([{**rank, "ties": [], "modules": {}, "born": {}, "drew": [], "lacks": False}])
    return Training(name, steps)


@pytest.mark.parametrize(
    ("other", "words"),
    [
        (training("B", 1, 2), "B computes what A does in the first 2 steps, bit for bit."),
        (training("B", 1, 2 + 1e-6), "B computes what A does, but for rounding. Nothing differs"),
        (training("B", 1, 3), "B does not compute what A does. Equal bit for bit up to step 1. At"),
        (training("B", 3, 2, index=7), "At step 1: 1 of 1 example are others: 0 in A and 7 in B."),
    ],
)
def test_first_steps_are_held_against_those_of_the_first_command(other, words) -> None:
    commands = [Command("a", "A"), Command("b", "B"), Command("c", "C", changes=(PARTS[0],))]
    recorded = {"A": training("A", 1, 2), "B": other, "C": training("C", 5)}
    (said,) = of_first_steps("A", compared(Measurements(commands, recorded=recorded)))
    assert words in said


@pytest.mark.slow
def test_a_script_that_trains_otherwise_is_told_from_a_copy(shell: Shell) -> None:
    (shell.folder / "train.py").write_text(SEEDED)
    lines = [f"{sys.executable} train.py {rate}" for rate in ("1e-3", "1e-3", "2e-3")]
    done = shell.run("-m", "ninefold", "bench", "-v", "--minutes=1", *lines)
    assert done.returncode in (0, 9), done.stderr
    assert "\nB computes what A does in the first " in done.stdout
    assert (
        "\nC does not compute what A does. At step 1: lr is 0.001 in A and 0.002 in C."
        in done.stdout
    )


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
def test_the_steps_of_all_optimizers_are_compared(shell: Shell) -> None:
    (shell.folder / "train.py").write_text(TWO)
    a, b = (f"{sys.executable} train.py {rate}" for rate in (1e-3, 1e-2))
    done = shell.run("-m", "ninefold", "bench", "-v", "--minutes=0.3", a, b)
    assert "B does not compute what A does. " in done.stdout
