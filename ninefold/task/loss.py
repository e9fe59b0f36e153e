"""A loss function of the user's choice, as a mean over the examples of a batch."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping
from typing import Any

from torch import Tensor

from ninefold.errors import ConfigError
from ninefold.numbers import counted

Loss = Callable[[Any, Any], Tensor]  # of output and targets, trees where they are such


def unreduced(loss: Loss | str, known: Mapping[str, Loss] = {}) -> Loss:
    """`loss` with reduction="none" where it has that attribute, as PyTorch's loss modules have.

    known: the unreduced losses that the task knows by name. Raises ConfigError for another name.
    """
    if isinstance(loss, str):
        if loss in known:
            return known[loss]
        allowed = f"{', '.join(known) or 'null'}, or a section with a _target_ is allowed"
        raise ConfigError("task.loss", loss, "no such loss", allowed, "name one of them")
    if getattr(loss, "reduction", "none") == "none":
        return loss
    loss = copy.copy(loss)
    loss.reduction = "none"  # type: ignore[attr-defined]
    return loss


def mean_over_examples(values: object, count: int, valid: Tensor | None = None) -> Tensor:
    """The mean over `count` examples of what an unreduced loss returned: a scalar.

    values: [n], or [n, ...] of which each example's mean is taken first.
    valid: bool like `values`, the elements that count; the others must be 0. An example without
        any counts as 0.
    Raises ConfigError if `values` has no number for each example.
    """
    if not isinstance(values, Tensor):
        wrong = "the loss returns no tensor"
        allowed = f"it must return {counted(count, 'value')}"
        do = "return a tensor with a number for each example"
        raise ConfigError("task.loss", type(values).__name__, wrong, allowed, do)
    if values.ndim == 0 or len(values) != count:
        wrong = "the loss has no number for each example"
        allowed = f"it must return {counted(count, 'value')}, or {count} along its first dimension"
        do = "take its mean over all dimensions but the first, or set reduction=none"
        raise ConfigError("task.loss", list(values.shape), wrong, allowed, do)
    if valid is None or values.ndim == 1:
        return values.mean()
    return (values.flatten(1).sum(dim=1) / valid.flatten(1).sum(dim=1).clamp(min=1)).mean()
