"""Parallel strategies: how a model is spread over devices and processes.

One module and one yaml for each strategy; this module has what all of them share.
"""

from __future__ import annotations

import copy
from abc import ABC, abstractmethod
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from ninefold.machine import gpus, require_gpus


@dataclass(frozen=True)
class Place:
    """Which process of the run this is, and the devices it computes on.

    rank: of this process among the world_size processes of the run.
    device: where inputs are put and losses come out.
    replicas: copies of the model that share one global batch, in the whole run.
    devices: all devices of this process; by default `device` alone.
    local_rank: of this process among the local_size processes of the run on this host.
    host_gpus: numbers of the GPUs of these processes, in the order of local ranks; empty: from 0.
    """

    rank: int
    world_size: int
    device: torch.device
    replicas: int = 1
    devices: tuple[torch.device, ...] = ()
    local_rank: int = 0
    local_size: int = 1
    host_gpus: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        if not self.devices:
            object.__setattr__(self, "devices", (self.device,))

    @property
    def gpus(self) -> list[int]:
        """The indices of the GPUs that this process computes on; empty on a CPU."""
        return [device.index or 0 for device in self.devices if device.type == "cuda"]

    def synchronize(self) -> None:
        """Wait until the devices of this process have finished their work."""
        for index in self.gpus:
            torch.cuda.synchronize(index)

    def share_of(self, threads: int) -> int:
        """This process's share of `threads` CPU threads of its host, at least 1."""
        each, rest = divmod(threads, self.local_size)
        return max(1, each + (self.local_rank < rest))


class Parallel(ABC):
    """A parallel strategy. Only `join` and `wrap` must be written; the rest suits one process.

    Its yaml also has `processes`, how many the launcher starts (`auto`: one for each GPU), and
    `max_processes`, how many the strategy can use (null: any number).
    """

    @abstractmethod
    def join(self) -> AbstractContextManager[Place]:
        """A context in which this process belongs to the process group."""

    @abstractmethod
    def wrap(self, model: nn.Module, place: Place) -> nn.Module:
        """Put `model`, built on the CPU, on the devices of `place`; return the module to call.

        It may replace the parameters of `model` in place: the optimizer is made afterwards.
        `model` stays the module whose state_dict is saved.
        """

    def accumulating(self, wrapped: nn.Module, last: bool) -> AbstractContextManager[None]:
        """A context for forward and backward of one micro-batch; `last`: the batch's last one."""
        return nullcontext()

    def total(self, values: Tensor) -> Tensor:
        """The elementwise sum of `values` over the processes, in a tensor like it."""
        return values

    def state(
        self, model: nn.Module, optimizer: torch.optim.Optimizer, average: Mapping[str, Tensor]
    ) -> dict[str, Any]:
        """What a checkpoint holds of `model`, `optimizer` and `average`, by these three names.

        On rank 0 with whole tensors under the plain model's names, live ones or copies. Every
        process must call it. average: the moving averages by the names of their parameters, laid
        out as these; empty without ema.
        """
        return {
            "model": model.state_dict(),
            "optimizer": optimizer.state_dict(),
            "average": dict(average),
        }

    def load(
        self,
        saved: Mapping[str, Any],
        model: nn.Module,
        optimizer: torch.optim.Optimizer,
        average: Mapping[str, Tensor],
    ) -> None:
        """Copy what `state` returned, or a checkpoint holds, into the three. See `state`.

        Every process must call it. Raises KeyError, ValueError or RuntimeError if it does not fit.
        """
        state = OrderedDict(saved["model"])
        # Of this version of each module: some, as torchvision's MNASNet, load nothing else.
        state._metadata = model.state_dict()._metadata  # type: ignore[attr-defined]
        model.load_state_dict(state)
        optimizer.load_state_dict(copy.deepcopy(saved["optimizer"]))
        lay_out_as_parameters(optimizer)
        for name, value in average.items():
            value.copy_(saved["average"][name])

    def notes(self, place: Place) -> list[str]:
        """Sentences about what has no effect, or another one, at this place."""
        return []


def lay_out_as_parameters(optimizer: torch.optim.Optimizer) -> None:
    """Give the state of each parameter its strides, as fused optimizers go through memory in order.

    A run that is resumed on another device may have another memory format there.
    """
    for parameter, values in optimizer.state.items():
        for name, value in values.items():
            if not isinstance(value, Tensor) or value.shape != parameter.shape:
                continue  # a counter of steps
            if value.stride() != parameter.stride():
                values[name] = torch.empty_like(parameter, dtype=value.dtype).copy_(value)


def resolve_device(name: str, index: int = 0) -> torch.device:
    """The device called `name` (auto, cpu, cuda or cuda:N); `index` is the GPU's without N.

    A GPU becomes the current one, on which streams and events are made by default.
    Raises ConfigError where it does not exist.
    """
    if name == "cpu" or (name == "auto" and not torch.cuda.is_available()):
        return torch.device("cpu")
    _, named, number = name.partition(":")
    index = int(number) if named else index
    if index >= torch.cuda.device_count():
        require_gpus("device", name, [index], gpus())
    torch.cuda.set_device(index)
    return torch.device("cuda", index)


def gpu_numbers(devices: Sequence[int] | None, count: int) -> tuple[int, ...]:
    """The GPUs to use of the `count` that there are: `devices`, or all for None."""
    return tuple(range(count)) if devices is None else tuple(devices)


def device_names(place: Place) -> list[str]:
    """One name for each device of the run; on a CPU one for each process."""
    if place.world_size == 1:
        return [
            torch.cuda.get_device_name(device) if device.type == "cuda" else "cpu"
            for device in place.devices
        ]
    if place.device.type == "cpu":
        return ["cpu"] * place.world_size
    here = gpu_numbers(place.host_gpus or None, torch.cuda.device_count())
    wanted = place.world_size * len(place.devices)
    names = [torch.cuda.get_device_name(index) for index in here[:wanted]]
    return [names[index % len(names)] for index in range(wanted)]


def gather(values: Tensor, parallel: Parallel, place: Place) -> Tensor:
    """[world_size, ...] on the CPU: the `values` of every process, on every process."""
    if place.world_size == 1:
        return values[None].cpu()
    rows = torch.zeros((place.world_size, *values.shape), dtype=values.dtype, device=place.device)
    rows[place.rank] = values
    return parallel.total(rows).cpu()
