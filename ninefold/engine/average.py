"""An exponential moving average (EMA) of a model's parameters (Polyak and Juditsky, 1992).

torch.optim.swa_utils.AveragedModel reads a tensor at each update, for which the host would wait.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn


class Average:
    """After each step the averages move toward the parameters by 1 - decay.

    Evaluation uses the averages. Buffers (such as BatchNorm's) are not averaged.

    decay: None keeps no average.
    warmup: the decay of update t (from 0) is min(decay, (1 + t) / (10 + t)), as timm has it.
    """

    def __init__(self, model: nn.Module, decay: float | None, warmup: bool = False) -> None:
        self._live = [p.detach() for p in model.parameters()] if decay else []
        self._averages = [value.clone() for value in self._live]
        own = {id(p): value for p, value in zip(model.parameters(), self._averages, strict=False)}
        named = model.named_parameters(remove_duplicate=False)  # a shared one has several
        self._named = {name: own[id(p)] for name, p in named if own}
        kinds = {type(average) for average in self._averages}  # a strategy may have sharded some
        self._groups = [
            [[t for t in tensors if type(t) is kind] for tensors in (self._averages, self._live)]
            for kind in kinds
        ]
        self._decay = decay or 0.0
        self._warmup = warmup

    def update(self, t: int) -> None:
        """Move the averages toward the parameters. t: updates so far."""
        if not self._averages:
            return
        decay = min(self._decay, (1 + t) / (10 + t)) if self._warmup else self._decay
        for averages, live in self._groups:
            torch._foreach_lerp_(averages, live, 1 - decay)

    @contextmanager
    def in_place(self) -> Iterator[None]:
        """A context in which the model's parameters hold the averages."""
        self._swap()
        try:
            yield
        finally:
            self._swap()

    def _swap(self) -> None:
        for live, average in zip(self._live, self._averages, strict=True):
            kept = live.clone()
            live.copy_(average)
            average.copy_(kept)

    def named(self) -> dict[str, Tensor]:
        """The averages by all names of their parameters; empty if none are kept."""
        return self._named
