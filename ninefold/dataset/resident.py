"""dataset.resident: examples that are copied to the GPU once, where batches are then taken."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from ninefold.dataset import Examples
from ninefold.dataset.arrays import Array, Rows
from ninefold.dataset.preparation import to_device
from ninefold.engine.batches import BatchReader
from ninefold.tree import Tree, each, leaves


@dataclass(frozen=True)
class Resident:
    """Examples on a device: no row is read, locked or copied by the host after that.

    inputs, targets: as in Examples.
    """

    inputs: Tree
    targets: Tree

    @classmethod
    def copied(cls, examples: Examples, device: torch.device) -> Resident:
        """`examples`, of arrays in memory, on `device`."""
        both = (examples.inputs, examples.targets)
        return cls(*each(lambda array: on_device(array, device), both))

    @property
    def shape(self) -> Tree:
        return each(lambda values: tuple(values.shape), self.inputs)

    def __len__(self) -> int:
        return len(leaves(self.inputs)[0])

    def in_epoch(self, seed: int, epoch: int) -> Resident:
        return self

    def batches(self, rows: Sequence[Rows], device: torch.device) -> BatchReader:
        if not rows:
            return
        sizes = [len(each) for each in rows]
        numbers = to_device(torch.from_numpy(np.concatenate(rows)), device)
        both = (self.inputs, self.targets)
        parts = each(lambda values: taken(values, numbers, sizes), both)
        for _ in sizes:
            yield each(next, parts)


def taken(values: Tensor, numbers: Tensor, sizes: Sequence[int]) -> Iterator[Tensor]:
    """The rows `numbers` of `values` in parts of these sizes; small rows by one kernel for all."""
    if math.prod(values.shape[1:]) <= 64:
        yield from values.index_select(0, numbers).split(list(sizes))
        return
    for some in numbers.split(list(sizes)):
        yield values.index_select(0, some)


def on_device(array: Array, device: torch.device) -> Tensor:
    """A copy of all rows of `array` on `device`, in pieces of 64 MiB: the host makes no other."""
    first = torch.from_numpy(array[np.zeros(1, np.int64)])
    values = torch.empty((len(array), *array.shape[1:]), dtype=first.dtype, device=device)
    step = max(1, 2**26 // max(1, first.nbytes))
    for start in range(0, len(array), step):
        rows = np.arange(start, min(start + step, len(array)))
        values[start : start + step] = torch.from_numpy(array[rows])
    return values
