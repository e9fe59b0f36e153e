"""Parallel strategies: how a model is spread over devices and processes.

One module and one yaml for each strategy; this module has what all of them share.
"""

from __future__ import annotations

import copy
from abc import ABC, abstractmethod
from collections import OrderedDict
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from ninefold.machine import gpus, require_gpus

KERNELS = ("foreach", "fused")  # options of the running optimizer that a checkpoint keeps


@dataclass(frozen=True)
class RankContext:
    """Which process of the run this is, and the devices it computes on.

    rank: of this process among the world_size processes of the run.
    device: where inputs are put and losses come out.
    replicas: parts of a global batch that are computed at the same time, in the whole run, each by
        a copy of the model.
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

    shards: whether a process holds parts of the parameters only (DTensors). Then parameters are
        contiguous, and every process must take part in each forward pass, also in evaluations.
    chunks: parts of a batch that it computes one after the other, so that batch normalization takes
        its statistics of a part; None: a batch is computed whole.
    """

    shards: ClassVar[bool] = False
    chunks: int | None = None

    @abstractmethod
    def join(self) -> AbstractContextManager[RankContext]:
        """A context in which this process belongs to the process group."""

    @abstractmethod
    def wrap(self, model: nn.Module, context: RankContext) -> nn.Module:
        """Put `model`, built on the CPU, on the devices of `context`; return the module to call.

        It may replace the parameters of `model` in place: the optimizer is made afterwards.
        `model` stays the module whose state_dict is saved.
        """

    def require_used(self, unused: Sequence[str]) -> None:
        """Raise ConfigError if a step must give each trained parameter a gradient, and did not.

        unused: names of the trained parameters that got none when a step was tried.
        """
        return  # most strategies wait for no gradient

    def accumulating(self, wrapped: nn.Module, last: bool) -> AbstractContextManager[None]:
        """A context for forward and backward of one micro-batch; `last`: the batch's last one."""
        return nullcontext()

    def all_reduce_sum(self, values: Tensor) -> Tensor:
        """The sum of `values` over the processes (an all-reduce); `values` are not changed.

        Every process must call it. With one process it may be `values` themselves.
        """
        return values

    def broadcast(self, tree: Any, meta: Collection[str] = ()) -> Any:
        """Rank 0's `tree` of plain values and tensors, on every process: tensors on the CPU.

        Every process must call it. With one process it is `tree` itself.
        meta: keys of `tree` whose tensors the others get on the meta device, without values, as
            `load` takes those that are sharded.
        """
        return tree

    def state(
        self, model: nn.Module, optimizer: torch.optim.Optimizer, average: Mapping[str, Tensor]
    ) -> dict[str, Any]:
        """Content of a checkpoint for `model`, `optimizer` and `average`, by these three names.

        On rank 0 with whole tensors under the plain model's names, live ones or copies; on other
        ranks, if the strategy `shards`, with tensors on the meta device. Every process must call
        it. average: the moving averages by the names of their parameters, laid out as these; empty
        without ema.
        """
        return {
            "model": model.state_dict(),
            "optimizer": optimizer.state_dict(),
            "average": dict(average),
        }

    def parts(
        self, model: nn.Module, optimizer: torch.optim.Optimizer, average: Mapping[str, Tensor]
    ) -> dict[str, Any]:
        """Like `state`, but live tensors of this process; a sharded one is a DTensor."""
        return self.state(model, optimizer, average)

    def writer(self, checkpoints: Any) -> Any:
        """What writes the strategy's own kind of checkpoints to `checkpoints`, the run's store.

        None: rank 0 writes whole ones. See ninefold.checkpoint.writer.Writer.
        """
        return None

    def load(
        self,
        saved: Mapping[str, Any],
        model: nn.Module,
        optimizer: torch.optim.Optimizer,
        average: Mapping[str, Tensor],
    ) -> None:
        """Copy what `state` or `parts` returned, or a checkpoint holds, into the three.

        If the strategy `shards`, ranks other than 0 give tensors on the meta device. Every process
        must call it. Raises KeyError, ValueError or RuntimeError if it does not fit.
        """
        state = OrderedDict(saved["model"])
        # Versions of modules: torchvision's MNASNet refuses a state_dict without them.
        state._metadata = model.state_dict()._metadata  # type: ignore[attr-defined]
        model.load_state_dict(state)
        content = copy.deepcopy(saved["optimizer"])
        for group, own in zip(content["param_groups"], optimizer.param_groups, strict=False):
            group.update({key: own[key] for key in KERNELS if key in own})
        optimizer.load_state_dict(content)
        lay_out_as_parameters(optimizer)
        for name, value in average.items():
            value.copy_(saved["average"][name])

    def first_steps(self, context: RankContext) -> int:
        """Steps after which the order in which it adds gradients changes no more.

        A resumed run takes as many before its own and undoes them, so that its sums are rounded as
        those of a run that was not stopped.
        """
        return 0

    def no_op(self, context: RankContext) -> bool:
        """Return whether at this place it computes what the plain model does on one device."""
        return False

    def notes(self, context: RankContext) -> list[str]:
        """Sentences about what has no effect, or another one, at this place."""
        return []


def local_part(tensor: Tensor) -> Tensor:
    """The part of `tensor` that this process holds: all of it, unless it is sharded."""
    local: Callable[[], Tensor] | None = getattr(tensor, "to_local", None)
    return tensor if local is None else local()


def whole(tensor: Tensor) -> Tensor:
    """All of `tensor`, on each process; if it is sharded, every process must call it."""
    full: Callable[[], Tensor] | None = getattr(tensor, "full_tensor", None)
    return tensor if full is None else full()


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


def device_names(context: RankContext) -> list[str]:
    """One name for each device of the run; on a CPU one for each process."""
    if context.world_size == 1:
        return [
            torch.cuda.get_device_name(device) if device.type == "cuda" else "cpu"
            for device in context.devices
        ]
    if context.device.type == "cpu":
        return ["cpu"] * context.world_size
    numbers = gpu_numbers(context.host_gpus or None, torch.cuda.device_count())
    wanted = context.world_size * len(context.devices)
    names = [torch.cuda.get_device_name(index) for index in numbers[:wanted]]
    return [names[index % len(names)] for index in range(wanted)]


def gather(values: Tensor, parallel: Parallel, context: RankContext) -> Tensor:
    """[world_size, ...] on the CPU: the `values` of every process, on each (an all-gather).

    Every process must call it, with the same shape and dtype. As a sum, in which all others have
    zeros in a process's row, it takes no collective of a strategy but `all_reduce_sum`.
    """
    if context.world_size == 1:
        return values[None].cpu()
    rows = torch.zeros(
        (context.world_size, *values.shape), dtype=values.dtype, device=context.device
    )
    rows[context.rank] = values
    return parallel.all_reduce_sum(rows).cpu()
