"""What a step sends, and what its tensors take, as calculated: for result.json and cost models."""

from __future__ import annotations

import pytest
import torch
import torch.distributed as dist
from torch import nn

from ninefold.engine.parallel import Parallel, RankContext, Traffic
from ninefold.engine.parallel.ddp import DDP, MIB
from ninefold.engine.parallel.dp import DP
from ninefold.engine.parallel.none import Single
from ninefold.model.convnet import ConvNet

CPU = torch.device("cpu")


def at(processes: int) -> RankContext:
    return RankContext(0, processes, CPU)


def sizes(model: nn.Module) -> int:
    return sum(p.numel() * p.element_size() for p in model.parameters())


@pytest.mark.parametrize("strategy", [Single(), DP(), DDP()], ids=lambda s: type(s).__name__)
def test_one_process_sends_nothing(strategy: Parallel) -> None:
    assert strategy.traffic(ConvNet(1, 10), at(1)) == Traffic(0, 0)


@pytest.mark.parametrize("processes", [2, 4, 64])
def test_ddp_sends_each_gradient_to_the_others_and_back_in_parts(processes: int) -> None:
    model = ConvNet(1, 10)
    found = DDP().traffic(model, at(processes), accumulate=4)  # only the last one is synchronized
    assert found == Traffic(2 * (processes - 1) * sizes(model) // processes, 1)


def test_what_ddp_would_send_is_known_without_allocating_the_model() -> None:
    with torch.device("meta"):
        model = nn.Sequential(nn.Linear(1024, 1024, bias=False), nn.BatchNorm1d(1024))
    model[1].requires_grad_(False)
    found = DDP().traffic(model, at(2))
    buffers = 2 * 1024 * 4 + 8
    assert found == Traffic(4 * MIB + buffers // 2, 1 + 2)  # floats, and the counter of batches
    assert DDP(broadcast_buffers=False).traffic(model, at(2)) == Traffic(4 * MIB, 1)


@pytest.mark.parametrize("cap", [None, 1, 3.5, 25])
def test_buckets_are_counted_as_torch_fills_them(cap: float | None) -> None:
    torch.manual_seed(0)
    gradients = [torch.empty(int(n)) for n in torch.randint(1, 2_000_000, (60,))]
    limits = [MIB, 25 * MIB] if cap is None else [int(cap * MIB)]
    ready = gradients[::-1]  # the last ones first
    buckets, _ = dist._compute_bucket_assignment_by_size(ready, limits)
    found = DDP(bucket_cap_mb=cap).buckets([g.nbytes for g in gradients])
    assert found == len(buckets)
