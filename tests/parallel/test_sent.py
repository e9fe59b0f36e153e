"""What a step is calculated to send is what the network counts."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.conftest import ROOT

CODE = """
import sys
from pathlib import Path
import torch
from torch import Tensor, nn
from tests.parallel.ranks import on_ranks

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.Sequential(*(nn.Linear(512, 512, bias=False) for _ in range(4)))
    def forward(self, inputs):
        return self.layers(inputs).square().mean()

def counted():
    (line,) = (e for e in Path("/proc/net/dev").read_text().splitlines() if e.strip()[:3] == "lo:")
    return int(line.split()[9])

def shares(strategy, steps=5):
    with strategy.join() as place:
        model = Net()
        wrapped = strategy.wrap(model, place)
        def step():
            wrapped(torch.ones(8, 512)).backward()
        step(), step()  # DDP arranges its buckets after the first
        strategy.all_reduce_sum(torch.zeros(1))
        before = counted()
        for _ in range(steps):
            step()
        strategy.all_reduce_sum(torch.zeros(1))
        sent = (counted() - before) / steps / place.world_size
        return sent / strategy.traffic(model, place).sent

for ranks, strategy in STRATEGIES:
    print(max(on_ranks(ranks, lambda: shares(strategy), Path(sys.argv[1]))))
"""
DDP = 'from ninefold.engine.parallel.ddp import DDP\nSTRATEGIES = [(2, DDP(device="cpu"))]'


def counted(strategies: str, folder: Path) -> list[float]:
    """Bytes that steps of these strategies send, counted by calculated, at most on any rank.

    strategies: code that gives the name STRATEGIES to pairs of a number of ranks and a strategy.
    """
    shell = f"ip link set lo up; exec {sys.executable} - {folder}"
    done = subprocess.run(
        ["unshare", "-n", "sh", "-c", shell], input=strategies + CODE, cwd=ROOT, text=True,
        stdout=subprocess.PIPE, check=True, env={**os.environ, "PYTHONPATH": str(ROOT)},
    )  # fmt: skip
    return [float(line) for line in done.stdout.split()]


@pytest.mark.slow
@pytest.mark.skipif(os.geteuid() != 0, reason="a network of its own takes root")
def test_what_is_calculated_is_counted_within_2_percent(tmp_path: Path) -> None:
    assert counted(DDP, tmp_path) == [pytest.approx(1, abs=0.02)]
