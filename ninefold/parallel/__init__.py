"""How a model is spread over devices and processes: one file and one yaml for each way."""

from __future__ import annotations

from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor, nn

from ninefold.errors import ConfigError


@dataclass(frozen=True)
class Place:
    """Where this process stands; `replicas` copies of the model share one global batch."""

    rank: int
    world_size: int
    device: torch.device
    replicas: int = 1

    @property
    def gpus(self) -> range:
        """The indices of the GPUs that this process computes on; none on a CPU."""
        if self.device.type != "cuda":
            return range(0)
        first = self.device.index or 0
        return range(first, first + self.replicas // self.world_size)

    def synchronize(self) -> None:
        """Wait until the devices of this process have done what they were given."""
        for index in self.gpus:
            torch.cuda.synchronize(index)


class Parallel(Protocol):
    """A strategy: a function from a plain model to a wrapped one, and what goes with it.

    Its yaml also says for the launcher how many `processes` it wants (`auto`: one for each GPU)
    and `max_processes`, how many it can use (null: any number).
    """

    def join(self) -> AbstractContextManager[Place]:
        """Enter the process group, leave it at the end."""

    def wrap(self, model: nn.Module, place: Place) -> nn.Module:
        """The module to call in place of `model`; the one to save is still `model`."""

    def accumulating(self, wrapped: nn.Module, last: bool) -> AbstractContextManager[None]:
        """Around a forward and backward pass on a part of a batch, `last` for its last part."""

    def total(self, values: Tensor) -> Tensor:
        """The elementwise sum of `values` over the processes, in a tensor like it."""

    def notes(self, place: Place) -> list[str]:
        """Sentences on what this strategy does not do at this place."""


def resolve_device(name: str, index: int = 0) -> torch.device:
    """The device called `name` (auto, cpu or cuda); `index` counts GPUs.

    Raises ConfigError where it does not exist.
    """
    if name == "cpu" or (name == "auto" and not torch.cuda.is_available()):
        return torch.device("cpu")
    if index >= torch.cuda.device_count():
        raise ConfigError(
            "device", name, f"GPU {index} is wanted",
            f"{torch.cuda.device_count()} found", "choose device=cpu or fewer processes",
        )  # fmt: skip
    return torch.device("cuda", index)


def device_names(place: Place) -> list[str]:
    """One name for each device in use; on a CPU one for each process."""
    if place.device.type == "cpu":
        return ["cpu"] * place.world_size
    first = place.device.index if place.world_size == 1 else 0
    count = min(place.replicas, torch.cuda.device_count())
    names = [torch.cuda.get_device_name(first + index) for index in range(count)]
    return [names[index % count] for index in range(place.replicas)]


def gather(values: Tensor, parallel: Parallel, place: Place) -> Tensor:
    """[world_size, ...] on the CPU: the `values` of every process, on every process."""
    if place.world_size == 1:
        return values[None].cpu()
    rows = torch.zeros((place.world_size, *values.shape), dtype=values.dtype, device=place.device)
    rows[place.rank] = values
    return parallel.total(rows).cpu()
