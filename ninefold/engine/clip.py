"""Gradient clipping, with the norm of the gradients before it."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn.utils import clip_grad_value_, clip_grads_with_norm_, get_total_norm

from ninefold.engine.amp import CountingScaler
from ninefold.engine.parallel import whole


class NoClip:
    """Leaves the gradients as they are, and does not look at them."""

    def __call__(self) -> None:
        """Called after the last backward pass of a step, before the optimizer's."""

    def metrics(self) -> dict[str, float]:
        """Figures of a log line on the gradients of the latest step."""
        return {}


class Clip(NoClip):
    """Unscales the gradients, measures their norm and clips them in place.

    norm: the largest norm of all of them together. value: else, of each element.
    """

    def __init__(
        self,
        norm: float | None,
        value: float | None,
        model: nn.Module,
        optimizer: torch.optim.Optimizer,
        scaler: CountingScaler,
    ) -> None:
        self._most, self._bound = norm, value
        self._parameters = [p for p in model.parameters() if p.requires_grad]
        self._optimizer = optimizer
        self._scaler = scaler
        self._norm: Tensor | None = None

    def __call__(self) -> None:
        self._scaler.unscale_(self._optimizer)
        parameters: list[Tensor] = [p for p in self._parameters if p.grad is not None]
        gradients = [p.grad for p in parameters if p.grad is not None]
        norm = whole(get_total_norm(gradients))
        if self._most is not None:
            clip_grads_with_norm_(parameters, self._most, norm)
        elif self._bound is not None:
            clip_grad_value_(parameters, self._bound)
        self._norm = norm

    def metrics(self) -> dict[str, float]:
        """grad_norm: the 2-norm of all gradients before clipping. Waits for the device."""
        return {} if self._norm is None else {"grad_norm": self._norm.item()}
