"""torch.distributed.tensor.parallel: linear layers spread over processes (tensor parallelism)."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

from ninefold.engine.parallel import RankContext
from ninefold.errors import ConfigError, one_line
from ninefold.extensions.sharded.spread import Spread, named_in

# In what torch says where a network does not go with its plan.
MISFITS = ("modified inplace", "mixed torch.Tensor and DTensor", "Sharding propagation failed")


@dataclass(frozen=True)
class TensorParallel(Spread):
    """All processes compute the same batch, each with a part of some linear layers.

    All else is whole, and computed by each process.
    """

    one_batch: ClassVar[bool] = True

    colwise: Sequence[str] | None = None
    rowwise: Sequence[str] | None = None

    def wrap(self, model: nn.Module, context: RankContext) -> nn.Module:
        colwise, rowwise = list(self.colwise or ()), list(self.rowwise or ())
        modules: dict[str, nn.Module] = {}
        for field, names in (("colwise", colwise), ("rowwise", rowwise)):
            known = named_in(model, names, f"parallel.{field}")
            for name in names:
                modules[name] = known[name]
                require_divisible(modules[name], name, field, context.world_size)
        for module in model.modules():
            if getattr(module, "inplace", False) is True:
                module.inplace = False  # type: ignore[assignment]  # a part cannot be changed so
        model.to(context.device)
        # It prints a traceback where a plan does not fit, which `SplitObjective` says in a line.
        logging.getLogger("torch._subclasses.fake_tensor").setLevel(logging.CRITICAL)
        assert dist.group.WORLD is not None
        mesh = DeviceMesh.from_group(dist.group.WORLD, context.device.type)
        # What a colwise layer gives is a DTensor, so that only what can take a part takes it.
        for name in colwise:
            parallelize_module(modules[name], mesh, ColwiseParallel(use_local_output=False))
        for name in rowwise:
            parallelize_module(modules[name], mesh, RowwiseParallel())
        return SplitObjective(model, f"colwise={listed(colwise)} rowwise={listed(rowwise)}")

    def notes(self, context: RankContext) -> list[str]:
        if context.world_size == 1:
            return ["parallel=tensor has one process here: no layer is split."]
        return []


class SplitObjective(nn.Module):
    """The objective with layers that are split; says so if the network does not go with that."""

    def __init__(self, objective: nn.Module, plan: str) -> None:
        super().__init__()
        self.module = objective
        self._plan = plan

    def forward(self, *arguments: Any, **options: Any) -> Any:
        try:
            return self.module(*arguments, **options)
        except RuntimeError as error:
            if not any(words in str(error) for words in MISFITS):
                raise
            raise ConfigError(
                "parallel",
                self._plan,
                f"the network does not go with it ({one_line(str(error))[:200]}); a rowwise layer "
                "takes what a colwise layer has given",
                "between them are only operations on single numbers, not in place",
                "name each colwise layer with the rowwise one that follows it",
            ) from error


def require_divisible(module: nn.Module, name: str, field: str, size: int) -> None:
    """Raise ConfigError unless `module` is a linear layer that so many processes can share."""
    if not isinstance(module, nn.Linear):
        raise ConfigError(
            f"parallel.{field}",
            name,
            f"a {type(module).__name__} cannot be split so",
            "linear layers are allowed",
            "leave it out",
        )
    what = "outputs" if field == "colwise" else "inputs"
    count = module.out_features if field == "colwise" else module.in_features
    if count % size:
        raise ConfigError(
            f"parallel.{field}",
            name,
            f"its {count} {what} do not divide by {size} processes",
            "equal parts are allowed",
            "choose another number of processes, or leave it out",
        )


def listed(names: Sequence[str]) -> str:
    """The names as they are written on a command line."""
    return f"[{','.join(names)}]"
