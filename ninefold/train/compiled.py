"""torch.compile: the network compiled for training."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from ninefold.engine.parallel import Place
from ninefold.errors import ConfigError

GRAPHS_FROM = 3  # the step from which on a CUDA graph is replayed, after warm-up and recording


class Compiled(nn.Module):
    """The compiled network while training, the plain network while evaluating.

    Evaluation has batches of two sizes, in another mode: each would be compiled for a few passes,
    and the accuracy would not be exactly the one that evaluate.py finds for the checkpoint.
    """

    def __init__(self, network: nn.Module, mode: str, backend: str = "inductor") -> None:
        super().__init__()
        self.network = network
        self.compiled = torch.compile(network, mode=mode, backend=backend, dynamic=False)

    def forward(self, *inputs: Tensor, **named: Tensor) -> Any:
        return (self.compiled if self.training else self.network)(*inputs, **named)


def require_one_device(mode: str, place: Place) -> None:
    """Raise ConfigError if this process would train on several devices.

    Copies of the network would call the code compiled for the first one, with its weights; parts
    of it would be compiled together, for one device.
    """
    if len(place.devices) > 1:
        raise ConfigError(
            "compile.mode",
            mode,
            "one process cannot train a compiled network on several devices; it has "
            f"{len(place.devices)} here; choose parallel=ddp, show it one GPU "
            "(CUDA_VISIBLE_DEVICES=0) or leave compile out",
        )


def notes(mode: str | None, device: torch.device) -> list[str]:
    """Sentences about what has no effect on `device`."""
    if mode == "reduce-overhead" and device.type != "cuda":
        return [
            "compile.mode=reduce-overhead is a no-op on a CPU beyond compile=true: it records "
            "CUDA graphs."
        ]
    return []
