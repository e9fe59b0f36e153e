"""A network and a task that are odd on purpose: see several.py."""

from __future__ import annotations

import os
import signal
from typing import Any

import torch
from torch import Tensor

from benchmarks.gpu.fails_alone import BEFORE, FailsAlone
from ninefold.model.convnet import ConvNet


class Turned(ConvNet):
    """Has a buffer that is not contiguous, which NCCL does not send."""

    def __init__(self, *options: Any, **named: Any) -> None:
        super().__init__(*options, **named)
        self.register_buffer("table", torch.arange(6.0).view(2, 3).t())


class Killed(FailsAlone):
    """Classification whose rank 0 is killed, as by a system that is out of memory."""

    def loss(self, output: Tensor, target: Tensor) -> Tensor:
        if self.losses == BEFORE and os.environ.get("RANK") == "0":
            os.kill(os.getpid(), signal.SIGKILL)
        return super().loss(output, target)
