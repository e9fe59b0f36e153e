"""The state of parameters that are spread over processes, as DTensors: saved, and loaded."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any, ClassVar

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.tensor import DTensor, distribute_tensor

from ninefold.engine.parallel import whole
from ninefold.engine.parallel.group import Group
from ninefold.errors import ConfigError, suggestion


@dataclass(frozen=True)
class Spread(Group):
    """A strategy whose processes hold parts of parameters.

    checkpoint: `whole`, a file that rank 0 writes, or `sharded`, a folder that all of them write.
    """

    shards: ClassVar[bool] = True

    checkpoint: str = "whole"

    def writer(self, checkpoints: Any) -> Any:
        if self.checkpoint == "whole":
            return None
        from ninefold.extensions.sharded.dcp import ShardedWriter  # torch's part imports slowly

        return ShardedWriter(checkpoints)

    def state(
        self, model: nn.Module, optimizer: torch.optim.Optimizer, average: Mapping[str, Tensor]
    ) -> dict[str, Any]:
        held = self.parts(model, optimizer, average)
        states = {
            index: {name: self._on_rank_0(value) for name, value in values.items()}
            for index, values in held["optimizer"]["state"].items()
        }
        return {
            "model": {name: self._on_rank_0(value) for name, value in held["model"].items()},
            "optimizer": {**held["optimizer"], "state": states},
            "average": {name: self._on_rank_0(value) for name, value in average.items()},
        }

    def parts(
        self, model: nn.Module, optimizer: torch.optim.Optimizer, average: Mapping[str, Tensor]
    ) -> dict[str, Any]:
        return super().state(model, optimizer, average)

    def _on_rank_0(self, value: Any) -> Any:
        """`value`, if it is a tensor whole and on the CPU; on other ranks its meta tensor.

        One at a time, so that no process but rank 0 needs memory for more than the largest one.
        """
        if not isinstance(value, Tensor):
            return value
        full = whole(value.detach())
        return full.cpu() if dist.get_rank() == 0 else torch.empty_like(full, device="meta")

    def load(
        self,
        saved: Mapping[str, Any],
        model: nn.Module,
        optimizer: torch.optim.Optimizer,
        average: Mapping[str, Tensor],
    ) -> None:
        own, device = model.state_dict(), next(model.parameters()).device
        parameters = dict(enumerate(chain(*(g["params"] for g in optimizer.param_groups))))
        states = {
            index: {name: part(value, parameters[index], device) for name, value in values.items()}
            for index, values in saved["optimizer"]["state"].items()
        }
        for state in states.values():  # torch moves them on for kernels that take them on a GPU
            if isinstance(step := state.get("step"), Tensor):
                state["step"] = step.cpu()  # else each would be waited for
        values = {
            name: part(value, own.get(name), device) for name, value in saved["model"].items()
        }
        averages = {
            name: part(saved["average"][name], like, device) for name, like in average.items()
        }
        super().load(
            {
                "model": values,
                "optimizer": {**saved["optimizer"], "state": states},
                "average": averages,
            },
            model,
            optimizer,
            average,
        )


def named_in(model: nn.Module, names: Sequence[str]) -> dict[str, nn.Module]:
    """The modules by name of the network in `model`, or of what it is wrapped in, with all `names`.

    Raises ConfigError if there is no such module.
    """
    known = [dict(module.named_modules()) for module in nested(model)]
    for modules in known:
        if all(name in modules for name in names):
            return modules
    missing = next(name for name in names if name not in known[-1])
    wrong = f"the model has no part {missing}"
    allowed = suggestion(missing, list(known[-1])[1:])
    do = "name submodules of it"
    raise ConfigError("parallel.units", f"[{','.join(names)}]", wrong, allowed, do)


def nested(model: nn.Module) -> list[nn.Module]:
    """`model`, the first module in it that has all its parameters, and so on to the network."""
    found = [model]
    while True:
        every = count(found[-1])
        inner = next((m for m in found[-1].children() if count(m) == every), None)
        if inner is None or not every:
            return found
        found.append(inner)


def count(module: nn.Module) -> int:
    """Elements of the parameters of `module`."""
    return sum(parameter.numel() for parameter in module.parameters())


def part(value: Any, like: object, device: torch.device) -> Any:
    """This process's part of a tensor that rank 0 has, spread as `like` if that has its shape.

    value: on other ranks its meta tensor; a DTensor is a part already. Every process must call it.
    """
    if not isinstance(value, Tensor):
        return value
    if isinstance(value, DTensor):
        return value.to(device)
    there = dist.get_rank() == 0
    whole = (
        value.contiguous().to(device)
        if there
        else torch.empty(value.shape, dtype=value.dtype, device=device)
    )
    if isinstance(like, DTensor) and like.shape == value.shape:
        return distribute_tensor(whole, like.device_mesh, like.placements)
    dist.broadcast(whole, src=0)
    return whole
