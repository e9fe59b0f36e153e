"""Lightning: the loop is the Trainer's, in its barebones mode, which is its fastest."""

from __future__ import annotations

import logging
import time
import warnings
from typing import Any

import lightning as L
import torch
import torch.nn.functional as F
from torch import Tensor, nn


class Module(L.LightningModule):
    """A network with cross entropy, which logs nothing."""

    def __init__(self, network: nn.Module) -> None:
        super().__init__()
        self.network = network
        self.seconds = 0.0

    def training_step(self, batch: tuple[Tensor, Tensor], index: int) -> Tensor:
        inputs, targets = batch
        return F.cross_entropy(self.network(inputs), targets)

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.AdamW(self.parameters(), lr=0.001, weight_decay=0.01, fused=True)

    def on_train_start(self) -> None:
        self.seconds = -time.perf_counter()

    def on_train_end(self) -> None:
        self.seconds += time.perf_counter()


def seconds(module: Module, loader: Any) -> float:
    """Train an epoch; returns the seconds from on_train_start to on_train_end."""
    logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
    warnings.filterwarnings("ignore", module="lightning")
    trainer = L.Trainer(accelerator="cpu", devices=1, max_epochs=1, barebones=True)
    trainer.fit(module, loader)
    return module.seconds
