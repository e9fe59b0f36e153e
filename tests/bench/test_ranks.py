"""`ninefold bench` names the rank that all others wait for, where that is clear."""

from __future__ import annotations

import sys

import pytest

from ninefold.bench.ranks import own_seconds, slow_rank
from ninefold.bench.strategies import LAUNCHER
from tests.conftest import Shell

TRAIN = """
import sys
import torch
from torch import distributed, nn

torch.set_num_threads(1)
distributed.init_process_group("gloo")
work = float(sys.argv[1]) if distributed.get_rank() == 1 else 1.0
layers = [layer for _ in range(6) for layer in (nn.Linear(256, 256), nn.ReLU())]
network = nn.parallel.DistributedDataParallel(nn.Sequential(*layers))
optimizer = torch.optim.SGD(network.parameters(), 0.01)
while True:
    optimizer.zero_grad()
    network(torch.randn(int(512 * work), 256)).square().mean().backward()
    optimizer.step()
"""


def test_the_slow_rank_takes_a_tenth_longer_in_nearly_all_steps() -> None:
    assert slow_rank([[1.0, 1.5, 1.0, 1.02]] * 20) == (1, 1.5)
    assert slow_rank([[1.0, 1.5]] * 7) is None
    assert slow_rank([[1.0, 1.09]] * 20) is None
    assert slow_rank([[1.0, 1.5], [1.0, 1.5], [1.0, 1.5], [1.5, 1.0]] * 5) is None
    assert slow_rank([[1.0]] * 20) is None


def test_the_own_work_of_a_rank_is_its_step_without_its_wait() -> None:
    answers = [
        {"seconds": [3.0, 3.0], "waited": [0.0, None]},
        {"seconds": [3.0, 3.0], "waited": [1.0, 1.0]},
    ]
    assert [*own_seconds(answers)] == [[3.0, 2.0]]
    assert [*own_seconds([{"seconds": [3.0], "waited": []}] * 2)] == []


@pytest.mark.slow
def test_the_rank_with_more_work_is_named_and_of_equal_ranks_nothing_is_said(shell: Shell) -> None:
    (shell.folder / "train.py").write_text(TRAIN)
    commands = [f"{sys.executable} {LAUNCHER} 2 train.py {work}" for work in (1, 1.5)]
    done = shell.run("-m", "ninefold", "bench", "-v", "--minutes=1", *commands)
    (line,) = [line for line in done.stdout.splitlines() if "waits for nobody" in line]
    assert line.startswith("In B rank 1 waits for nobody and all wait for it: without waits its ")
    assert 1.2 < float(line.split("take ")[1].split()[0]) < 1.8
