"""DDP steps that take turns under torchrun; rank 1's `slow` sleeps. Writes what each rank saw."""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path

import torch
from torch import distributed, nn

import ninefold
from ninefold.errors import ConfigError


def main() -> None:
    torch.set_num_threads(1)
    distributed.init_process_group("gloo")
    rank = distributed.get_rank()
    net = nn.parallel.DistributedDataParallel(nn.Linear(8, 1))
    taken: list[str] = []

    def step(name: str, seconds: float) -> None:
        taken.append(name)
        time.sleep(seconds)
        net(torch.randn(4, 8)).sum().backward()

    steps = {
        "quick": lambda: step("quick", 0.01),
        "slow": lambda: step("slow", 0.03 * rank),  # on rank 1 alone
    }
    found = ninefold.time_steps(steps, minutes=0.1)
    try:
        ninefold.time_steps({"a": steps["quick"], f"b{rank}": steps["slow"]}, minutes=0.1)
        refused = ""
    except ConfigError as error:
        refused = str(error)
    seen = {"taken": taken, "seconds": dict(found.seconds), "rows": found.rows(),
            "busy": found.busy, "refused": refused}  # fmt: skip
    Path(sys.argv[1], f"{rank}.json").write_text(json.dumps(seen))
    distributed.destroy_process_group()


if __name__ == "__main__":
    main()
