"""Lightning Fabric: the loop is the user's."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from lightning.fabric import Fabric
from torch import nn


def train(model: nn.Module, optimizer: torch.optim.Optimizer, loader: Any, fabric: Fabric) -> None:
    """`model` and `optimizer` come from fabric.setup."""
    model.train()
    for inputs, targets in fabric.setup_dataloaders(loader):
        optimizer.zero_grad()
        loss = F.cross_entropy(model(inputs), targets)
        fabric.backward(loss)
        optimizer.step()
