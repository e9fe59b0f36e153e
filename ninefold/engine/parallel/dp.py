"""torch.nn.DataParallel: one process, a thread and a fresh copy of the model per GPU and step."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from ninefold.engine.parallel import Parallel, RankContext, gpu_numbers, resolve_device
from ninefold.tree import Tree, call, chunks, rows


@dataclass(frozen=True)
class DP(Parallel):
    """DataParallel over `devices`, by default all GPUs; on a CPU it calls the model itself."""

    device: str = "auto"
    processes: int = 1
    max_processes: int = 1
    devices: Sequence[int] | None = None
    loss_in_forward: bool = True

    @contextmanager
    def join(self) -> Iterator[RankContext]:
        numbers = gpu_numbers(self.devices, torch.cuda.device_count())
        device = resolve_device(self.device, numbers[0] if numbers else 0)
        gpus = tuple(torch.device("cuda", n) for n in numbers) if device.type == "cuda" else ()
        yield RankContext(0, 1, device, replicas=max(1, len(gpus)), devices=gpus)

    def wrap(self, model: nn.Module, context: RankContext) -> nn.Module:
        model.to(context.device)
        if not context.gpus:
            return WithoutGPU(model)
        kind = ParallelObjective if self.loss_in_forward else GatheredObjective
        return kind(model, context.gpus)

    def no_op(self, context: RankContext) -> bool:
        return context.replicas == 1

    def notes(self, context: RankContext) -> list[str]:
        if context.device.type == "cpu":
            return ["parallel=dp is a no-op on a CPU: DataParallel copies models to GPUs only."]
        if context.replicas == 1:
            return ["parallel=dp is a no-op on one GPU: DataParallel has nothing to spread over."]
        return []


class ParallelObjective(nn.DataParallel[nn.Module]):
    """DataParallel over an objective: the mean loss over the whole batch, the sums of a measure.

    Replicas may have parts of a batch of unlike sizes, as 7 examples on three are 3, 3 and 1. A
    mean of their mean losses would weight the one as much as the three.
    """

    def forward(self, inputs: Tree, targets: Tree, measure: bool = False) -> Any:
        # Not by keyword: a replica without examples would then be called with the keyword alone.
        found = super().forward(inputs, targets, measure)
        if len(self.device_ids) == 1:  # the module itself was called
            return found
        if measure:
            loss, sums = found
            return loss.sum(dim=0), sums.sum(dim=0)
        sizes = [rows(part) for part in chunks(inputs, len(self.device_ids))]  # as it scatters
        return sum(
            loss * (size / sum(sizes)) for loss, size in zip(found.unbind(), sizes, strict=True)
        )

    def gather(self, outputs: Any, output_device: Any) -> Any:
        """Stack what the replicas returned along a new first dimension."""
        if isinstance(outputs[0], Tensor):
            return super().gather([output[None] for output in outputs], output_device)
        return [self.gather(list(parts), output_device) for parts in zip(*outputs, strict=True)]


class GatheredObjective(nn.Module):
    """DataParallel over the network of an objective: outputs and loss of a batch on one GPU."""

    def __init__(self, objective: nn.Module, gpus: Sequence[int]) -> None:
        super().__init__()
        self.module = objective
        # In a tuple, so that it is no submodule: its parameters are those of `module`.
        self._outputs = (nn.DataParallel(objective.get_submodule("network"), gpus),)

    def forward(self, inputs: Tree, targets: Tree, measure: bool = False) -> Any:
        objective: Any = self.module
        return objective.loss(call(self._outputs[0], inputs), targets, measure)


class WithoutGPU(nn.DataParallel[nn.Module]):
    """DataParallel as it is on a machine without GPUs, where its forward calls the module.

    Its overhead stays, so that a cell measures what users of DataParallel get there.
    """

    def __init__(self, model: nn.Module) -> None:
        nn.Module.__init__(self)  # DataParallel's own takes every GPU of the machine
        self.module = model
        self.device_ids = []
