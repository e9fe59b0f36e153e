"""One process on one device."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass

from torch import Tensor, nn

from ninefold.parallel import Place, resolve_device


@dataclass(frozen=True)
class Single:
    """No parallelism: what the other strategies are measured against."""

    device: str = "auto"
    processes: int = 1
    max_processes: int = 1

    @contextmanager
    def join(self) -> Iterator[Place]:
        yield Place(rank=0, world_size=1, device=resolve_device(self.device))

    def wrap(self, model: nn.Module, place: Place) -> nn.Module:
        return model

    def accumulating(self, wrapped: nn.Module, last: bool) -> AbstractContextManager[None]:
        return nullcontext()

    def total(self, values: Tensor) -> Tensor:
        return values

    def notes(self, place: Place) -> list[str]:
        return []
