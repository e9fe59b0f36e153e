"""A loss function of the user's choice, as a mean over the examples of a batch."""

from __future__ import annotations

import copy
from collections.abc import Callable, Collection
from typing import Any

from torch import Tensor

from ninefold.errors import ConfigError
from ninefold.numbers import counted

Loss = Callable[[Any, Any], Tensor]  # of output and targets, trees where they are such


def unreduced(loss: Loss | str) -> Loss:
    """`loss` with reduction="none" where it has that attribute, as PyTorch's loss modules have.

    Raises ConfigError for a name, which only some tasks know.
    """
    if isinstance(loss, str):
        raise unknown(loss, ["null"])
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
    if values.ndim == 1:
        return values.mean()
    values = values.flatten(1)
    if valid is None:
        return values.mean()
    return (values.sum(dim=1) / valid.flatten(1).sum(dim=1).clamp(min=1)).mean()


def require_known(loss: object, known: Collection[str]) -> None:
    """Raise ConfigError if `loss` is a name that is not one of `known`."""
    if isinstance(loss, str) and loss not in known:
        raise unknown(loss, known)


def unknown(loss: str, known: Collection[str]) -> ConfigError:
    """The failure for a loss that has none of the names `known`."""
    allowed = f"{', '.join(known)}, or a section with a _target_ is allowed"
    return ConfigError("task.loss", loss, "no such loss", allowed, "name one of them")
