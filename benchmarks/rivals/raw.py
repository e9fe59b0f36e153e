"""The simplest correct PyTorch loop: no log, no clock, no checkpoint. It is the limit."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ninefold.dataset import Examples


def batch(
    examples: Examples,
    rows: npt.NDArray[np.int64],
    memory_format: torch.memory_format = torch.contiguous_format,
) -> tuple[Tensor, Tensor]:
    """float32 [n, c, h, w] of pixels in 0..1, and int64 [n]."""
    inputs = torch.from_numpy(examples.inputs[rows]).float().div_(255)
    return inputs.contiguous(memory_format=memory_format), torch.from_numpy(examples.targets[rows])


def train(
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    examples: Examples,
    batches: npt.NDArray[np.int64],
    memory_format: torch.memory_format = torch.contiguous_format,
) -> None:
    """Train on `batches`, the rows of each: int64 [steps, batch]."""
    model.train()
    for rows in batches:
        inputs, targets = batch(examples, rows, memory_format)
        loss = F.cross_entropy(model(inputs), targets)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
