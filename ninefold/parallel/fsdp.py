"""torch.distributed.fsdp.fully_shard (FSDP2): parameters spread over processes, also in copies."""

from __future__ import annotations

import difflib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from itertools import chain
from typing import Any, ClassVar

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import FSDPModule, MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor import DTensor, distribute_tensor

from ninefold.errors import ConfigError, one_line
from ninefold.parallel import Place, Traffic
from ninefold.parallel.group import Group, keep, share_buffers

AUTO = "auto"
LISTS = (nn.Sequential, nn.ModuleList, nn.ModuleDict)  # modules that compute nothing themselves
MIXED = "mixed torch.Tensor and DTensor"  # in what torch says of parameters that are not gathered


@dataclass(frozen=True)
class FSDP(Group):
    """Each process holds a part of every parameter, its gradient and its optimizer state.

    Before a unit of the model computes, its parameters are gathered from all processes; afterwards
    they are dropped. Gradients are averaged in parts. `timeout` is the process group's, in seconds.

    replicas: whole copies of the model, each spread over processes / replicas processes that
        follow each other (HSDP if there are several).
    reshard_after_forward: False keeps gathered parameters until the backward pass.
    units: names of submodules whose parameters are gathered together, besides all others; auto:
        children of the network, and of lists in it, with at least `least` parameters.
    reduce_dtype: in which gradients are averaged, by torch's name; None: their own.
    """

    shards: ClassVar[bool] = True

    replicas: int = 1
    reshard_after_forward: bool = True
    units: str | Sequence[str] = AUTO
    least: int = 1_000_000
    reduce_dtype: str | None = None

    def wrap(self, model: nn.Module, place: Place) -> nn.Module:
        for parameter in model.parameters():
            parameter.data = parameter.data.contiguous()  # others cannot be spread
        options: dict[str, Any] = {
            "mesh": self._mesh(place),
            "reshard_after_forward": self.reshard_after_forward,
            "mp_policy": MixedPrecisionPolicy(reduce_dtype=self._reduced),
        }
        try:
            for unit in [*self._units(model), model]:
                fully_shard(unit, **options)
        except (AssertionError, NotImplementedError, ValueError) as error:
            raise ConfigError(
                "parallel",
                "fsdp",
                "the model cannot be spread over processes",
                one_line(str(error)),
                "use parallel=ddp",
            ) from error
        return Sharded(model, self.units)

    @property
    def _reduced(self) -> torch.dtype | None:
        return None if self.reduce_dtype is None else getattr(torch, self.reduce_dtype)

    def _mesh(self, place: Place) -> DeviceMesh:
        """The processes of the run: [replicas, processes of one], or those of the only copy."""
        assert dist.group.WORLD is not None
        if self.replicas == 1:
            return DeviceMesh.from_group(dist.group.WORLD, place.device.type)
        ranks = torch.arange(place.world_size).view(self.replicas, -1)
        groups = []
        for rows in (ranks.T, ranks):
            mine, every = dist.new_subgroups_by_enumeration(
                rows.tolist(), timeout=timedelta(seconds=self.timeout)
            )
            keep(every)
            assert isinstance(mine, dist.ProcessGroup)
            groups.append(mine)
        return DeviceMesh.from_group(
            groups, place.device.type, ranks, mesh_dim_names=("replicas", "shards")
        )

    def _units(self, model: nn.Module) -> list[nn.Module]:
        """The modules of the network in `model` that are gathered apart, inner ones first."""
        inside = nested(model)
        if isinstance(self.units, str):
            return [unit for child in inside[-1].children() for unit in large(child, self.least)]
        known = [dict(module.named_modules()) for module in inside]
        for modules in known:
            if all(name in modules for name in self.units):
                return [modules[name] for name in sorted(self.units, key=deepest_first)]
        missing = next(name for name in self.units if name not in known[-1])
        near = difflib.get_close_matches(missing, known[-1], n=1)
        raise ConfigError(
            "parallel.units",
            list(self.units),
            f"the model has no part {missing}",
            f"did you mean {near[0]}?" if near else f"it has {', '.join(list(known[-1])[1:20])}",
            "name submodules of the model",
        )

    def whole(self, tensor: Tensor) -> Tensor:
        return tensor.full_tensor() if isinstance(tensor, DTensor) else tensor

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
        whole = self.whole(value.detach())
        return whole.cpu() if dist.get_rank() == 0 else torch.empty_like(whole, device="meta")

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

    def traffic(self, model: nn.Module, place: Place, accumulate: int = 1) -> Traffic:
        shards = place.world_size // self.replicas
        units = self._units(model)
        found = Traffic()
        seen: set[nn.Parameter] = set()
        for unit in [*units, model]:
            own = [p for p in unit.parameters() if p not in seen]
            seen.update(own)
            found += self._traffic_of(own, shards, gloo=place.device.type == "cpu")
        return found * accumulate

    def _traffic_of(self, parameters: Sequence[nn.Parameter], shards: int, gloo: bool) -> Traffic:
        """What a unit with these parameters causes in a forward and backward pass.

        gloo: it reduces to parts by reducing to all, which is twice as much (torch 2.15).
        """
        if not parameters:
            return Traffic()
        trained = [parameter for parameter in parameters if parameter.requires_grad]
        gathered = sum(padded(p, shards) * p.element_size() for p in parameters)
        width = None if self._reduced is None else self._reduced.itemsize
        reduced = sum(padded(p, shards) * (width or p.element_size()) for p in trained)
        found = Traffic()
        if shards > 1:
            times = 2 if self.reshard_after_forward else 1
            found += Traffic((shards - 1) * gathered // shards, 1) * times
            found += Traffic((1 + gloo) * (shards - 1) * reduced // shards, 1 if trained else 0)
        if self.replicas > 1 and trained:
            sent = 2 * (self.replicas - 1) * reduced // (self.replicas * shards)
            found += Traffic(sent, 1)
        return found

    def notes(self, place: Place) -> list[str]:
        if place.world_size == 1:
            return [
                "parallel=fsdp has one process here: nothing is spread, it measures the cost of "
                "FSDP, not what it saves."
            ]
        if place.world_size == self.replicas:
            return [
                f"parallel.replicas={self.replicas} gives each process a whole copy: nothing is "
                "spread, as with ddp."
            ]
        return []


class Sharded(nn.Module):
    """The objective whose parameters are spread. Its buffers are those of rank 0 in evaluations.

    units: the key, for an error.
    Entering and leaving an evaluation drops gathered parameters: without a backward pass some would
    stay, and be used after the optimizer or a moving average has replaced their values.
    """

    def __init__(self, objective: nn.Module, units: str | Sequence[str]) -> None:
        super().__init__()
        self.module = objective
        self._units = units

    def forward(self, *arguments: Any, **options: Any) -> Any:
        try:
            return self.module(*arguments, **options)
        except RuntimeError as error:
            if MIXED not in str(error):
                raise
            raise ConfigError(
                "parallel.units",
                self._units,
                "the model uses the parameters of a unit without calling it",
                "a list of submodules that are called is allowed, and [] for a single unit",
                "set parallel.units",
            ) from error

    def train(self, mode: bool = True) -> Sharded:
        for module in self.modules():
            if isinstance(module, FSDPModule):
                module.reshard()
        if self.training and not mode:
            share_buffers(self.module)
        super().train(mode)
        return self


def nested(model: nn.Module) -> list[nn.Module]:
    """`model`, the first module in it that has all its parameters, and so on to the network."""
    found = [model]
    while True:
        every = count(found[-1])
        inner = next((m for m in found[-1].children() if count(m) == every), None)
        if inner is None or not every:
            return found
        found.append(inner)


def large(module: nn.Module, least: int) -> list[nn.Module]:
    """`module` if it has `least` parameters; of a list its large modules, then what is left."""
    if count(module) < least:
        return []
    if not isinstance(module, LISTS):
        return [module]
    found = [unit for child in module.children() for unit in large(child, least)]
    rest = count(module) - sum(count(unit) for unit in found)
    return [*found, module] if isinstance(module, nn.Sequential) and rest >= least else found


def count(module: nn.Module) -> int:
    """Elements of the parameters of `module`."""
    return sum(parameter.numel() for parameter in module.parameters())


def deepest_first(name: str) -> int:
    """A key that sorts names of modules so that none comes after one that contains it."""
    return -name.count(".")


def padded(tensor: Tensor, shards: int) -> int:
    """Elements of `tensor` with its first dimension filled up to equal parts for all `shards`."""
    rows = tensor.shape[0]
    return tensor.numel() // max(rows, 1) * (-(-rows // shards) * shards)


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
