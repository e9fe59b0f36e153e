"""What a step is calculated to send is what the network counts."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from tests.conftest import ROOT

CODE = """
import sys
from pathlib import Path
import torch
from torch import Tensor, nn
from ninefold.engine.parallel.ddp import DDP
from ninefold.engine.parallel.fsdp import FSDP
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

for ranks, strategy in ((2, DDP(device="cpu")), (2, FSDP(device="cpu", least=1000)),
                        (4, FSDP(device="cpu", least=1000)),
                        (2, FSDP(device="cpu", least=1000, reshard_after_forward=False)),
                        (4, FSDP(device="cpu", least=1000, replicas=2))):
    print(max(on_ranks(ranks, lambda: shares(strategy), Path(sys.argv[1]))))
"""


@pytest.mark.slow
@pytest.mark.skipif(os.geteuid() != 0, reason="a network of its own takes root")
def test_what_is_calculated_is_counted_within_2_percent(tmp_path: object) -> None:
    shell = f"ip link set lo up; exec {sys.executable} - {tmp_path}"
    done = subprocess.run(
        ["unshare", "-n", "sh", "-c", shell], input=CODE, cwd=ROOT, text=True,
        stdout=subprocess.PIPE, check=True, env={**os.environ, "PYTHONPATH": str(ROOT)},
    )  # fmt: skip
    shares = [float(line) for line in done.stdout.split()]
    assert len(shares) == 5
    assert shares == pytest.approx([1] * 5, abs=0.02)
