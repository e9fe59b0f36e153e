"""The simplest correct PyTorch loop: no log, no clock, no checkpoint. It is the limit."""

from __future__ import annotations

from collections.abc import Callable

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
    """float32 [n, c, h, w] of pixels in 0..1, and targets as the dataset has them."""
    inputs = torch.from_numpy(examples.inputs[rows]).float().div_(255)
    return inputs.contiguous(memory_format=memory_format), torch.from_numpy(examples.targets[rows])


def masked_loss(output: Tensor, masks: Tensor, void: int) -> Tensor:
    """Cross entropy of logits and masks: the mean over an example's valid pixels, then over all."""
    target = masks.long()
    losses = F.cross_entropy(output, target, ignore_index=void, reduction="none").flatten(1)
    return (losses.sum(1) / (target != void).flatten(1).sum(1).clamp(min=1)).mean()


def train(
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    examples: Examples,
    batches: npt.NDArray[np.int64],
    memory_format: torch.memory_format = torch.contiguous_format,
    loss_of: Callable[[Tensor, Tensor], Tensor] = F.cross_entropy,
) -> None:
    """Train on `batches`, the rows of each: int64 [steps, batch]."""
    model.train()
    for rows in batches:
        inputs, targets = batch(examples, rows, memory_format)
        loss = loss_of(model(inputs), targets)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
