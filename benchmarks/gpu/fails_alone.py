"""A task of which rank 0 alone fails in training: its peers go on to wait for it."""

from __future__ import annotations

import os

from torch import Tensor

from ninefold.task.classification import Classification

BEFORE = 6  # losses, those of the check of the model and of the warm-up among them


class FailsAlone(Classification):
    """Classification that runs out of memory on rank 0."""

    def __init__(self, classes: int) -> None:
        super().__init__(classes)
        self.losses = 0

    def loss(self, output: Tensor, target: Tensor) -> Tensor:
        self.losses += 1
        if self.losses > BEFORE and os.environ.get("RANK") == "0":
            raise RuntimeError("CUDA out of memory. Tried to allocate 2.00 GiB.")
        return super().loss(output, target)
