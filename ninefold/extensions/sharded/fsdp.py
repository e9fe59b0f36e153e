"""torch.distributed.fsdp.fully_shard (FSDP2): parameters spread over processes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from inspect import signature
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import FSDPModule, MixedPrecisionPolicy, fully_shard

from ninefold.engine.amp import BATCH_NORM, Autocast, Cast
from ninefold.engine.parallel import RankContext
from ninefold.engine.parallel.group import share_buffers
from ninefold.errors import ConfigError, one_line, text_of
from ninefold.extensions.sharded.spread import Spread, count, named_in, nested

LISTS = (nn.Sequential, nn.ModuleList, nn.ModuleDict)  # modules that compute nothing themselves
# Modules that autocast lets compute in float32.
NORMS = (nn.modules.batchnorm._NormBase, nn.LayerNorm, nn.GroupNorm, nn.RMSNorm)
MIXED = "mixed torch.Tensor and DTensor"  # in what torch says of parameters that are not gathered


@dataclass(frozen=True)
class FSDP(Spread):
    """Each process holds a part of every parameter, its gradient and its optimizer state.

    Before a unit of the model computes, its parameters are gathered from all processes; afterwards
    they are dropped. Gradients are averaged in parts. `timeout` is the process group's, in seconds.

    param_dtype: auto: parameters are gathered in the dtype of autocast, but for those of
        normalization, which keep theirs. Autocast itself would keep a copy of all gathered ones
        until the backward pass.
    """

    reshard_after_forward: bool = True
    units: str | Sequence[str] = "auto"
    least: int = 1_000_000
    param_dtype: str = "auto"
    reduce_dtype: str | None = None

    def wrap(self, model: nn.Module, context: RankContext) -> nn.Module:
        for parameter in model.parameters():
            parameter.data = parameter.data.contiguous()  # others cannot be spread
        assert dist.group.WORLD is not None
        options: dict[str, Any] = {
            "mesh": DeviceMesh.from_group(dist.group.WORLD, context.device.type),
            "mp_policy": self._policy(model),
        }
        try:
            for unit in self._units(model):
                fully_shard(unit, reshard_after_forward=self.reshard_after_forward, **options)
            fully_shard(model, reshard_after_forward=False, **options)  # backward begins with it
        except (AssertionError, NotImplementedError, ValueError) as error:
            wrong = "the model cannot be spread over processes"
            allowed = one_line(str(error))
            raise ConfigError("parallel", "fsdp", wrong, allowed, "use parallel=ddp") from error
        return Sharded(model, self.units)

    def _policy(self, model: nn.Module) -> MixedPrecisionPolicy:
        """Autocast itself casts inputs, and the loss's are not cast. Raises ConfigError."""
        reduced = None if self.reduce_dtype is None else getattr(torch, self.reduce_dtype)
        computed = [each.dtype for each in model.modules() if isinstance(each, Autocast)]
        if not computed or self.param_dtype != "auto":
            return MixedPrecisionPolicy(reduce_dtype=reduced)
        norms = [each for each in model.modules() if isinstance(each, NORMS)]
        kept = {id(parameter) for each in norms for parameter in each.parameters()}
        options: dict[str, Any] = {}
        if kept and "param_dtype_override_fn" in signature(MixedPrecisionPolicy).parameters:
            options["param_dtype_override_fn"] = lambda parameter: (
                parameter.dtype if id(parameter) in kept else None
            )
        elif kept:
            raise ConfigError(
                "parallel.param_dtype",
                self.param_dtype,
                f"torch {torch.__version__} gathers all parameters of a unit in one dtype, and "
                "normalization needs its own in float32",
                "float32 is allowed here",
                "set that, or install torch 2.15",
            )
        return MixedPrecisionPolicy(
            param_dtype=computed[0],
            reduce_dtype=reduced or torch.float32,
            cast_forward_inputs=False,
            **options,
        )

    def _units(self, model: nn.Module) -> list[nn.Module]:
        """The modules of the network in `model` that are gathered apart, inner ones first."""
        if isinstance(self.units, str):
            network = nested(model)[-1]
            uses = uses_of(network)
            found = [
                unit
                for child in network.children()
                for unit in large(child, self.least)
                if uses_of(unit).items() <= uses.items()  # else a part outside shares a parameter
            ]
        else:
            modules = named_in(model, self.units)
            inner_first = sorted(self.units, key=lambda name: name.count("."), reverse=True)
            found = [modules[name] for name in inner_first]
        if not any(isinstance(each, Cast) for each in model.modules()):
            return found
        norms = [each for each in model.modules() if isinstance(each, BATCH_NORM)]
        return [*dict.fromkeys([*norms, *found])]  # a unit has one dtype, and theirs is float32

    def notes(self, context: RankContext) -> list[str]:
        if context.world_size == 1:
            return [
                "parallel=fsdp has one process here: nothing is spread, it measures the cost of "
                "FSDP, not what it saves."
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
            if MIXED not in text_of(error):
                raise
            wrong = "the model uses the parameters of a unit without calling it"
            allowed = "a list of submodules that are called is allowed, and [] for a single unit"
            do = "set parallel.units"
            raise ConfigError("parallel.units", self._units, wrong, allowed, do) from error

    def train(self, mode: bool = True) -> Sharded:
        for module in self.modules():
            if isinstance(module, FSDPModule):
                module.reshard()
        if self.training and not mode:
            share_buffers(self.module)
        super().train(mode)
        return self


def large(module: nn.Module, least: int) -> list[nn.Module]:
    """`module` if it has `least` parameters; of a list its large modules, then what is left."""
    if count(module) < least:
        return []
    if not isinstance(module, LISTS):
        return [module]
    found = [unit for child in module.children() for unit in large(child, least)]
    rest = count(module) - sum(count(unit) for unit in found)
    return [*found, module] if isinstance(module, nn.Sequential) and rest >= least else found


def uses_of(module: nn.Module) -> Counter[int]:
    """How often a module has each parameter, by id."""
    return Counter(id(each) for _, each in module.named_parameters(remove_duplicate=False))
