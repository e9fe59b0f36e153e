"""Gradient clipping, with the norm of the gradients before it."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.nn.utils import clip_grad_value_, clip_grads_with_norm_, get_total_norm

from ninefold.engine.amp import CountingScaler


class NoClip:
    """Leaves the gradients as they are, and does not look at them."""

    def __call__(self) -> None:
        """Called after the last backward pass of a step, before the optimizer's."""

    def metrics(self) -> dict[str, float]:
        """Figures of a log line on the gradients of the latest step."""
        return {}


class Clip(NoClip):
    """Unscales the gradients, measures their norm and clips them in place.

    clip: torch's function to call with the parameters that have gradients and their total norm.
    full_tensor: gathers a tensor that a strategy has sharded, see `Parallel.full_tensor`.
    """

    def __init__(
        self,
        model: nn.Module,
        optimizer: torch.optim.Optimizer,
        scaler: CountingScaler,
        clip: Callable[[list[Tensor], Tensor], object],
        full_tensor: Callable[[Tensor], Tensor],
    ) -> None:
        self._parameters = [p for p in model.parameters() if p.requires_grad]
        self._optimizer = optimizer
        self._scaler = scaler
        self._clip = clip
        self._full_tensor = full_tensor
        self._norm: Tensor | None = None

    def __call__(self) -> None:
        self._scaler.unscale_(self._optimizer)
        parameters: list[Tensor] = [p for p in self._parameters if p.grad is not None]
        gradients = [p.grad for p in parameters if p.grad is not None]
        norm = self._full_tensor(get_total_norm(gradients))
        self._clip(parameters, norm)
        if self._norm is None:
            self._norm = norm
        else:  # at its place, to which a recorded step writes as well
            self._norm.copy_(norm)

    def metrics(self) -> dict[str, float]:
        """grad_norm: the 2-norm of all gradients before clipping. Waits for the device."""
        return {} if self._norm is None else {"grad_norm": self._norm.item()}


def clip(
    norm: float | None,
    value: float | None,
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    scaler: CountingScaler,
    full_tensor: Callable[[Tensor], Tensor] = lambda tensor: tensor,
) -> NoClip:
    """Return a clip of gradients to the total 2-norm `norm`, or each element to +-`value`, or none.

    full_tensor: see Clip.
    """
    assert norm is None or value is None
    if norm is not None:
        most = norm
        return Clip(
            model,
            optimizer,
            scaler,
            lambda ps, total: clip_grads_with_norm_(ps, most, total),
            full_tensor,
        )
    if value is not None:
        bound = value
        return Clip(
            model, optimizer, scaler, lambda ps, total: clip_grad_value_(ps, bound), full_tensor
        )
    return NoClip()
