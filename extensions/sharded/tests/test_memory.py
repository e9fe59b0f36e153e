"""What a process of parallel=fsdp holds of a network of 67 million parameters."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from ninefold.engine.parallel.ddp import DDP
from ninefold.sharded.fsdp import FSDP
from ninefold.train.kernels import give_back_freed, keep_freed
from tests.parallel.ranks import on_ranks
from tests.train.test_process_settings import BEGIN, faults, glibc

SIDE, LAYERS = 4096, 4
LEAST = SIDE * SIDE


class Squares(nn.Module):
    """Square layers, each of 67 MB."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(*(nn.Linear(SIDE, SIDE, bias=False) for _ in range(LAYERS)))

    def forward(self, inputs: Tensor) -> Tensor:
        return torch.as_tensor(self.layers(inputs).square().mean())


def resident() -> tuple[int, int]:
    """Bytes of this process in memory: now, and at most so far."""
    lines = dict(line.split(":") for line in Path("/proc/self/status").read_text().splitlines())
    now, most = (int(lines[name].split()[0]) * 1024 for name in ("VmRSS", "VmHWM"))
    return now, most


def taken(strategy: DDP | FSDP) -> tuple[int, int, int]:
    """Bytes that two steps add to this process: afterwards, and at most; and that a save adds."""
    if strategy.shards:
        give_back_freed()
    else:
        keep_freed()
    before = resident()[0]
    with strategy.join() as context:
        model = Squares()
        wrapped = strategy.wrap(model, context)
        optimizer = torch.optim.AdamW(model.parameters(), fused=True)
        Path("/proc/self/clear_refs").write_text("5")  # the most is counted from here
        for _ in range(2):
            wrapped(torch.ones(1, SIDE)).backward()
            optimizer.step()
            optimizer.zero_grad()
        now, most = resident()
        Path("/proc/self/clear_refs").write_text("5")
        strategy.state(model, optimizer, {})
        return now - before, most - before, resident()[1] - now


@pytest.mark.slow
@pytest.mark.parametrize(("ranks", "least"), [(2, 0.6), (4, 0.4)])
def test_a_process_holds_its_part_and_a_save_the_largest_tensor_more(
    ranks: int, least: float, tmp_path: Path
) -> None:
    ddp = on_ranks(2, lambda: taken(DDP(device="cpu")), tmp_path)
    fsdp = on_ranks(ranks, lambda: taken(FSDP(device="cpu", least=LEAST)), tmp_path)
    print(f"ddp {ddp}\nfsdp on {ranks} {fsdp}")
    for after, _, _ in fsdp:
        assert after <= least * min(each[0] for each in ddp)
    for _, _, more in fsdp[1:]:  # a tensor gathered, and the parts it is gathered from
        assert more <= 2.2 * LEAST * 4


@pytest.mark.slow
@glibc
def test_a_run_gives_back_freed_memory_as_its_parameters_are_gathered_for_a_short_time() -> None:
    assert faults(BEGIN.format("fsdp")) > 300
