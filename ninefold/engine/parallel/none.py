"""One process on one device."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from torch import nn

from ninefold.engine.parallel import Parallel, RankContext, resolve_device


@dataclass(frozen=True)
class Single(Parallel):
    """No parallelism: the baseline of the other strategies."""

    device: str = "auto"
    processes: int = 1
    max_processes: int = 1

    @contextmanager
    def join(self) -> Iterator[RankContext]:
        yield RankContext(rank=0, world_size=1, device=resolve_device(self.device))

    def wrap(self, model: nn.Module, context: RankContext) -> nn.Module:
        return model.to(context.device)
