"""Hugging Face Accelerate: the loop is the user's."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from accelerate import Accelerator
from torch import nn


def train(
    model: nn.Module, optimizer: torch.optim.Optimizer, loader: Any, accelerator: Accelerator
) -> None:
    """`model` and `optimizer` come from accelerator.prepare."""
    model.train()
    for inputs, targets in accelerator.prepare(loader):
        optimizer.zero_grad()
        loss = F.cross_entropy(model(inputs), targets)
        accelerator.backward(loss)
        optimizer.step()
