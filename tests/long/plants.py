"""Optimizers that make the cells of one strategy differ; `here` is the strategy of the run."""

from __future__ import annotations

from typing import Any

import torch

DDP = "ninefold.engine.parallel.ddp.DDP"


def doubled_under_ddp(parameters: Any, here: str, lr: float, **rest: Any) -> torch.optim.AdamW:
    """AdamW with twice the learning rate under ddp."""
    return torch.optim.AdamW(parameters, lr=2 * lr if here == DDP else lr, **rest)
