"""dataset.resident: examples that are copied to the GPU once, where batches are then taken."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ninefold.dataset import Examples
from ninefold.dataset.arrays import Array, Rows, varies
from ninefold.dataset.loader import HostSource, LoaderPlan, amount, in_memory, plan_loading
from ninefold.dataset.preparation import to_device
from ninefold.engine.batches import BatchReader, Source
from ninefold.engine.parallel import Parallel, RankContext, gather
from ninefold.errors import ConfigError
from ninefold.machine import available_memory, cores
from ninefold.tree import Tree, each, leaves

AUTO_SHARE = 1 / 16  # of a GPU's memory that resident=auto takes at most; of all of it, so that
#                 runs that are compared agree, whatever is free when each of them starts
FREE_SHARE = 1 / 2  # of what is free there that true takes at most
SMALL = 64  # values of an example up to which those of a whole epoch are taken at once
PIECE = 2**26  # bytes that are copied at a time: no second copy of a set is made on the host


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
    if math.prod(values.shape[1:]) <= SMALL:
        yield from values.index_select(0, numbers).split(list(sizes))
        return
    for some in numbers.split(list(sizes)):
        yield values.index_select(0, some)


def on_device(array: Array, device: torch.device) -> Tensor:
    """A copy of all rows of `array` on `device`, made piece by piece."""
    first = torch.from_numpy(array[np.zeros(1, np.int64)])
    values = torch.empty((len(array), *array.shape[1:]), dtype=first.dtype, device=device)
    step = max(1, PIECE // max(1, first.nbytes))
    for start in range(0, len(array), step):
        rows = np.arange(start, min(start + step, len(array)))
        values[start : start + step] = torch.from_numpy(array[rows])
    return values


def source_of(examples: Examples, how: LoaderPlan, device: torch.device) -> Source:
    """`examples` as `how` says that they are read."""
    if how.resident:
        return Resident.copied(examples, device)
    return HostSource(examples, how.workers, how.pinned)


def resident_bytes(
    asked: object, sets: Sequence[Examples], device: torch.device, memory: tuple[int, int]
) -> int:
    """The bytes of `sets` if they are to be copied to `device`, else 0.

    asked: dataset.resident. auto: on CUDA, sets that are arrays in memory and together take no more
        than AUTO_SHARE. true: they must be, and may take FREE_SHARE of what is free.
    memory: the free and the total bytes of the GPU.
    Raises ConfigError where they must and cannot.
    """
    must, on_cpu = asked is True, device.type == "cpu"
    if asked is False or (on_cpu and not must):
        return 0
    arrays = [array for examples in sets for array in examples.arrays]
    fitting = all(in_memory(array) and not varies(array) for array in arrays)
    size = sum(nbytes(array) for array in arrays) if fitting else 0
    free, total = memory
    if fitting and not on_cpu and size <= (FREE_SHARE * free if must else AUTO_SHARE * total):
        return size
    if not must:
        return 0
    wrong = f"the examples take {amount(size)}, more than {FREE_SHARE:g} of the GPU's free memory"
    if on_cpu:
        wrong = f"there is no GPU to copy the examples to (device {device})"
    elif not fitting:
        wrong = "the examples are no arrays in memory, as those of dataset.cache=disk are"
    raise ConfigError(
        "dataset.resident", "true", f"{wrong}; auto and false are allowed; leave it out"
    )


def nbytes(array: Array) -> int:
    """The bytes of all rows of `array`."""
    return len(array) * array[np.zeros(1, np.int64)].nbytes if len(array) else 0


def reading(
    settings: Mapping[str, Any],
    resident: object,
    sets: Sequence[Examples],
    batch_size: int,
    parallel: Parallel,
    context: RankContext,
) -> LoaderPlan:
    """How batches of `sets`, of which the first one is trained on, are read.

    settings: the section `loader`. resident: dataset.resident.
    Every process must call it. Raises ResourceError, ConfigError.
    """
    own = plan_loading(
        sets[0],
        max(1, batch_size // context.data_size),
        context,
        workers=settings["workers"],
        share=settings["share"],
        pinned=settings["pinned"],
        free=available_memory(),
        cores=cores(),
    )
    on_gpu = context.device.type == "cuda"
    memory = torch.cuda.mem_get_info(context.device) if on_gpu else (0, 0)
    size = resident_bytes(resident, sets, context.device, memory)
    mine = torch.tensor([own.workers, size], device=context.device)
    workers, least = gather(mine, parallel, context).amin(dim=0).tolist()
    if least:  # on all of them
        return replace(own, workers=0, pinned=False, resident=size)
    return replace(own, workers=workers)
