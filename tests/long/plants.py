"""Optimizers that make the cells of one strategy differ; `here` is the strategy of the run."""

from __future__ import annotations

import time
from typing import Any

import torch

DDP = "ninefold.engine.parallel.ddp.DDP"


class SlowUnderDDP(torch.optim.AdamW):
    """AdamW that sleeps 20 ms a step under ddp."""

    def __init__(self, parameters: Any, here: str, **rest: Any) -> None:
        super().__init__(parameters, **rest)
        self._nap = 0.02 if here == DDP else 0.0

    def step(self, *arguments: Any, **rest: Any) -> Any:
        time.sleep(self._nap)
        return super().step(*arguments, **rest)


def doubled_under_ddp(parameters: Any, here: str, lr: float, **rest: Any) -> torch.optim.AdamW:
    """AdamW with twice the learning rate under ddp."""
    return torch.optim.AdamW(parameters, lr=2 * lr if here == DDP else lr, **rest)
