"""`ninefold.time_steps` in the ranks of one job."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import distributed, nn

import ninefold
from ninefold.errors import ConfigError
from tests.parallel.ranks import on_ranks


def timed() -> dict[str, Any]:
    """DDP steps that take turns, of which `slow` sleeps on rank 1 alone: what this rank saw."""
    distributed.init_process_group("gloo")
    rank = distributed.get_rank()
    net = nn.parallel.DistributedDataParallel(nn.Linear(8, 1))
    taken: list[str] = []

    def step(name: str, seconds: float) -> None:
        taken.append(name)
        time.sleep(seconds)
        net(torch.randn(4, 8)).sum().backward()

    steps = {"quick": lambda: step("quick", 0.01), "slow": lambda: step("slow", 0.03 * rank)}
    found = ninefold.time_steps(steps, minutes=0.1)
    with pytest.raises(ConfigError, match=r"^error: steps=a, b"):
        ninefold.time_steps({"a": steps["quick"], f"b{rank}": steps["slow"]}, minutes=0.1)
    distributed.destroy_process_group()
    rows = [{**row, "begin": None, "end": None} for row in found.rows()]  # by the rank's own clock
    return {"taken": taken, "seconds": dict(found.seconds), "rows": rows, "busy": found.busy}


@pytest.mark.slow
def test_ranks_take_the_same_turns_a_turn_is_the_slowest_ranks_and_rank_0_prints(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    first, second = on_ranks(2, timed, tmp_path)
    assert first == second
    assert first["seconds"]["quick"] >= 0.01
    assert first["seconds"]["slow"] >= 0.03
    assert capfd.readouterr().out.count("rocess") == 1  # the sentence
