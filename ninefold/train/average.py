"""An exponential moving average of a model's parameters (Polyak and Juditsky, 1992)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager

import torch
from torch import Tensor, nn


class Average:
    """After each step a parameter's average moves by 1 - decay towards it; None averages nothing.

    What is measured is the average. Buffers (as BatchNorm's) are the model's own.
    """

    def __init__(self, model: nn.Module, decay: float | None) -> None:
        self._names = [name for name, _ in model.named_parameters()] if decay else []
        self._live = [p.detach() for p in model.parameters()] if decay else []
        self._averages = [value.clone() for value in self._live]
        self._step = 1 - (decay or 0)

    def update(self) -> None:
        if self._averages:
            torch._foreach_lerp_(self._averages, self._live, self._step)

    @contextmanager
    def in_place(self) -> Iterator[None]:
        """While this lasts the model has the averages for parameters."""
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

    def state_dict(self) -> dict[str, Tensor]:
        """The averages by the names of their parameters; empty if there are none."""
        return dict(zip(self._names, self._averages, strict=True))

    def load_state_dict(self, state: Mapping[str, Tensor]) -> None:
        for name, average in zip(self._names, self._averages, strict=True):
            average.copy_(state[name])
