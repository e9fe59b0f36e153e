"""torch.nn.DataParallel: one process, a thread and a fresh copy of the model per GPU and step."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from torch import nn

from ninefold.parallel import Parallel, Place, resolve_device


@dataclass(frozen=True)
class DP(Parallel):
    """DataParallel over every visible GPU; on a CPU it calls the model itself."""

    device: str = "auto"
    processes: int = 1
    max_processes: int = 1

    @contextmanager
    def join(self) -> Iterator[Place]:
        device = resolve_device(self.device)
        count = torch.cuda.device_count() if device.type == "cuda" else 0
        gpus = tuple(torch.device("cuda", index) for index in range(count))
        yield Place(0, 1, device, replicas=max(1, count), devices=gpus)

    def wrap(self, model: nn.Module, place: Place) -> nn.Module:
        model.to(place.device)
        return nn.DataParallel(model, place.gpus) if place.gpus else WithoutGPU(model)

    def notes(self, place: Place) -> list[str]:
        if place.device.type == "cpu":
            return ["parallel=dp is a no-op on a CPU: DataParallel copies models to GPUs only."]
        if place.replicas == 1:
            return ["parallel=dp is a no-op on one GPU: DataParallel has nothing to spread over."]
        return []


class WithoutGPU(nn.DataParallel[nn.Module]):
    """DataParallel as it is on a machine without GPUs, where its forward calls the module.

    Its overhead stays, so that a cell measures what users of DataParallel get there.
    """

    def __init__(self, model: nn.Module) -> None:
        nn.Module.__init__(self)  # DataParallel's own takes every GPU of the machine
        self.module = model
        self.device_ids = []
