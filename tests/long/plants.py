"""What is planted in a cell of a study, through a run's own seams; `here` is its strategy."""

from __future__ import annotations

import time
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from ninefold.task.classification import Classification

DDP = "ninefold.parallel.ddp.DDP"


@dataclass(frozen=True)
class SlowTask(Classification):
    """Cross entropy that sleeps 5 ms a batch under ddp."""

    here: str

    def loss(self, output: Tensor, target: Tensor) -> Tensor:
        if self.here == DDP:
            time.sleep(0.005)
        return super().loss(output, target)


def doubled_under_ddp(
    parameters: Iterable[nn.Parameter], here: str, lr: float, **rest: Any
) -> torch.optim.AdamW:
    """AdamW with twice the learning rate under ddp."""
    return torch.optim.AdamW(parameters, lr=2 * lr if here == DDP else lr, **rest)
