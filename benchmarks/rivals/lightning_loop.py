"""Lightning: the loop is the Trainer's."""

from __future__ import annotations

import logging
import time
import warnings
from pathlib import Path
from typing import Any

import lightning as L
import torch
import torch.nn.functional as F
from lightning.pytorch.loggers import TensorBoardLogger
from torch import Tensor, nn


class Module(L.LightningModule):
    """A network with cross entropy; logs: whether the loss is logged, as most users do."""

    def __init__(self, network: nn.Module, logs: bool) -> None:
        super().__init__()
        self.network = network
        self.logs = logs
        self.seconds = 0.0

    def training_step(self, batch: tuple[Tensor, Tensor], index: int) -> Tensor:
        inputs, targets = batch
        loss = F.cross_entropy(self.network(inputs), targets)
        if self.logs:
            self.log("loss", loss)
        return loss

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.AdamW(self.parameters(), lr=0.001, weight_decay=0.01, fused=True)

    def on_train_start(self) -> None:
        self.seconds = -time.perf_counter()

    def on_train_end(self) -> None:
        self.seconds += time.perf_counter()


def seconds(module: Module, loader: Any, folder: Path, log_every: int) -> float:
    """Train an epoch; returns the seconds from on_train_start to on_train_end.

    A module that does not log uses the Trainer's barebones mode, its fastest.
    """
    logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
    warnings.filterwarnings("ignore", module="lightning")
    if module.logs:
        trainer = L.Trainer(
            accelerator="cpu",
            devices=1,
            max_epochs=1,
            logger=TensorBoardLogger(folder),
            log_every_n_steps=log_every,
            enable_checkpointing=False,
            enable_progress_bar=False,
            enable_model_summary=False,
            num_sanity_val_steps=0,
        )
    else:
        trainer = L.Trainer(accelerator="cpu", devices=1, max_epochs=1, barebones=True)
    trainer.fit(module, loader)
    return module.seconds
