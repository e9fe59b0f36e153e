"""A network that torch.compile has made faster."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from ninefold.errors import ConfigError
from ninefold.parallel import Place

GRAPHS_FROM = 3  # steps until a CUDA graph is replayed: one to warm up, one to record it


class Compiled(nn.Module):
    """Compiled while training, the plain network while evaluating.

    Evaluation's batches come in two sizes and a mode of their own: each would be compiled for a
    few passes, and the measure would not be that of the weights in a checkpoint.
    """

    def __init__(self, network: nn.Module, mode: str, backend: str = "inductor") -> None:
        super().__init__()
        self.network = network
        self.compiled = torch.compile(network, mode=mode, backend=backend, dynamic=False)

    def forward(self, inputs: Tensor) -> Tensor:
        output: Tensor = (self.compiled if self.training else self.network)(inputs)
        return output


def require_one_copy(mode: str, place: Place) -> None:
    """Raise ConfigError if this process is to train several copies of the network.

    The copies would call what was compiled for the first one, with its weights.
    """
    if place.replicas > place.world_size:
        raise ConfigError(
            "compile.mode", mode, "one process cannot train several copies of a compiled network",
            f"it has {place.replicas // place.world_size} GPUs here",
            "choose parallel=ddp, show it one GPU (CUDA_VISIBLE_DEVICES=0) or leave compile out",
        )  # fmt: skip


def notes(mode: str | None, device: torch.device) -> list[str]:
    """Sentences on what this mode does not do on `device`."""
    if mode == "reduce-overhead" and device.type != "cuda":
        return [
            "compile.mode=reduce-overhead is a no-op on a CPU beyond compile=true: it records "
            "CUDA graphs."
        ]
    return []
