"""Counts of classes, the names they are shown by, and the failure of a set without labels."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeVar

import torch
from torch import Tensor

from ninefold.errors import DataError

T = TypeVar("T")


def named(names: Sequence[str], values: Sequence[T]) -> dict[str, T]:
    """`values` by `names` if these are as many different ones, else by the numbers from 0."""
    known = names if len(set(names)) == len(values) else map(str, range(len(values)))
    return dict(zip(known, values, strict=True))


def unlabeled(label: str, found: str) -> DataError:
    """The failure of a set of which nothing is scored: no example of it has a `label`."""
    wrong = f"no example of the set has {label}, so that there is nothing to score; {found}"
    do = "a validation split (dataset.val) needs some too"
    return DataError("dataset", "test", wrong, "see its labels", do)


def counted(cells: Tensor, size: int) -> Tensor:
    """Count how often each number below `size` occurs in `cells`, int64 [n, ...]: int64 [size]."""
    if cells.device.type == "cpu":
        return torch.bincount(cells.flatten(), minlength=size)
    return added(cells, size)


def added(cells: Tensor, size: int) -> Tensor:
    """Count as `counted`, without a wait for the device: there bincount reads the extremes.

    Pixels [n, ...] are counted for each example apart: where most are of one class, additions to a
    single number would wait for each other.
    """
    parts = len(cells) if cells.ndim > 1 else 1
    first = torch.arange(parts, device=cells.device)[:, None] * size
    places = (cells.reshape(parts, -1) + first).flatten()
    counts = places.new_zeros(parts * size).index_add_(0, places, torch.ones_like(places))
    return counts.view(parts, size).sum(dim=0)
