"""How the processes of a run read their batches: on the host, ahead or not, or from the GPU."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np
import torch

from ninefold.dataset import Examples
from ninefold.dataset.arrays import Array, Selected
from ninefold.dataset.loader import AHEAD, HostSource
from ninefold.dataset.resident import Resident
from ninefold.engine.batches import Source
from ninefold.engine.parallel import Parallel, RankContext, gather
from ninefold.errors import ConfigError
from ninefold.machine import available_memory, cores, shared_memory
from ninefold.numbers import amount, counted
from ninefold.tree import leaves

MAX_PROCESSES = 16  # that `auto` starts at most
SHARE = 0.25  # of what memory is free, for the batches that it reads ahead


@dataclass(frozen=True)
class LoaderPlan:
    """How each process of a run reads its batches.

    workers: that read ahead; 0: none. processes: whether they are processes, not threads.
    pinned: whether batches are read into page-locked memory, on CUDA.
    batch: bytes of a process's part of a batch, as the dataset has it.
    dtypes: of inputs and targets.
    resident: bytes of the examples that are copied to the GPU once; 0: none, they are read.
    """

    workers: int
    pinned: bool
    batch: int
    dtypes: tuple[str, str]
    resident: int = 0
    processes: bool = False

    def source(self, examples: Examples, device: torch.device) -> Source:
        """Return `examples` as they are read by this plan."""
        if self.resident:
            return Resident.copied(examples, device)
        return HostSource(examples, self.workers, self.pinned)

    def __str__(self) -> str:
        if self.resident:
            return (
                f"loader: {amount(self.resident)} of examples are copied to the GPU once "
                "(dataset.resident), and batches are taken there"
            )
        inputs, targets = self.dtypes
        kind = ("process", "processes") if self.processes else ("thread",)
        pinned, count = ", page-locked" * self.pinned, slots(self.workers)
        return (
            f"loader: {counted(self.workers, *kind)}, {count} slots of {amount(self.batch)} "
            f"({inputs} inputs, {targets} targets{pinned}) = {amount(count * self.batch)}"
        )


def plan(
    settings: Mapping[str, Any],
    resident: object,
    sets: Sequence[Examples],
    batch_size: int,
    evaluated: int,
    parallel: Parallel,
    context: RankContext,
) -> LoaderPlan:
    """Plan how batches of `sets`, of which the first one is trained on, are read.

    settings: the section `loader`. resident: dataset.resident. evaluated: as `batch_size`, in
        evaluations.
    Every process must call it. Raises ConfigError.
    """
    rows, most = (max(1, size // context.world_size) for size in (batch_size, evaluated))
    here: dict[str, Any] = {
        "free": available_memory(), "shared": shared_memory(), "cores": cores(),
    }  # fmt: skip
    own = on_host(sets[0], rows, context, most=most, **here, **settings)
    on_gpu = context.device.type == "cuda"
    memory = torch.cuda.mem_get_info(context.device) if on_gpu else (0, 0)
    size = resident_bytes(resident, sets, context.device, memory)
    mine = torch.tensor([own.workers, size], device=context.device)
    workers, least = gather(mine, parallel, context).amin(dim=0).tolist()
    if least:  # on all of them
        return replace(own, workers=0, pinned=False, resident=size)
    if own.processes and workers:  # they have been started
        return own
    return replace(own, workers=workers)


def on_host(
    examples: Examples,
    rows: int,
    context: RankContext,
    *,
    workers: int | Literal["auto"],
    pinned: bool | Literal["auto"],
    free: int | None,
    cores: int | None,
    shared: int | None = None,
    most: int = 0,
) -> LoaderPlan:
    """Plan how to read batches of `rows` examples of `examples` in each process.

    workers: threads, or processes where examples have a reader. auto: none for arrays in memory;
        else threads, as many as SHARE of the `free` bytes of memory and the cores allow, up to
        eight. On a CPU one, as training uses the cores. Where examples have a reader
        `processes_ahead`, or none if all of these together would need more.
    pinned: auto: on CUDA.
    free, cores, shared: of this host, the last one bytes of /dev/shm; None: not known.
    most: rows of the largest batch, in an evaluation.
    Raises ConfigError if pinned memory is asked for without a GPU.
    """
    one = np.zeros(1, np.int64)
    read = [[a[one] for a in leaves(tree)] for tree in (examples.inputs, examples.targets)]
    batch = rows * sum(array.nbytes for array in leaves(read))
    on_gpu = context.device.type == "cuda"
    if pinned is True and not on_gpu:
        raise ConfigError(
            "loader.pinned",
            "true",
            f"batches stay in main memory (device {context.device}); it speeds up copies to a GPU",
            "auto and false are allowed on a CPU",
            "leave it out",
        )
    allowed = None if free is None else int(SHARE * free) // context.local_size
    fitting = MAX_PROCESSES if allowed is None else (allowed // max(batch, 1) - 1) // AHEAD
    if workers == "auto" and examples.reader is not None:
        count = processes_ahead(context, cores)  # as many as `built_dataset` has started
        largest = slots(count) * (batch // rows) * max(rows, most)
        rooms = [SHARE * room / context.local_size for room in (free, shared) if room is not None]
        if any(largest > room for room in rooms):
            count = 0
    elif workers == "auto":
        spare = (cores or 1) // context.local_size - 1 if on_gpu else 1
        arrays = leaves(examples.inputs)
        count = 0 if all(map(in_memory, arrays)) else max(0, min(8, fitting, spare))
    else:
        count = workers
    inputs, targets = ("+".join(str(array.dtype) for array in arrays) for arrays in read)
    page_locked, processes = on_gpu and pinned is not False, examples.reader is not None
    return LoaderPlan(count, page_locked, batch, (inputs, targets), processes=processes)


def processes_ahead(context: RankContext, cores: int | None) -> int:
    """How many processes read the items of a user's class for each process that trains.

    A GPU leaves the cores to them; on a CPU training uses these, and there are none.
    """
    if context.device.type != "cuda":
        return 0
    return max(0, min(MAX_PROCESSES, (cores or 1) // context.local_size - 1))


def resident_bytes(
    asked: object, sets: Sequence[Examples], device: torch.device, memory: tuple[int, int]
) -> int:
    """Return the bytes of `sets` if they are to be copied to `device`, else 0.

    asked: dataset.resident. auto: on CUDA, sets that are arrays in memory and together take no more
        than 1/16 of all there is, so that runs that are compared agree, whatever is free when each
        of them starts. true: they must be, and may take half of what is free.
    memory: the free and the total bytes of the GPU.
    Raises ConfigError where they must and cannot.
    """
    must, on_cpu = asked is True, device.type == "cpu"
    if asked is False or (on_cpu and not must):
        return 0
    arrays = [array for examples in sets for array in examples.arrays]
    fitting = all(map(in_memory, arrays))
    size = sum(nbytes(array) for array in arrays) if fitting else 0
    free, total = memory
    if fitting and not on_cpu and size <= (free / 2 if must else total / 16):
        return size
    if not must:
        return 0
    wrong = f"the examples take {amount(size)}, more than 0.5 of the GPU's free memory"
    if on_cpu:
        wrong = f"there is no GPU to copy the examples to (device {device})"
    elif not fitting:
        wrong = "the examples are no arrays in memory, as those of dataset.cache=disk are"
    raise ConfigError(
        "dataset.resident", "true", wrong, "auto and false are allowed", "leave it out"
    )


def slots(workers: int) -> int:
    """Count the batches in memory at the same time: those read ahead, and the one in use."""
    return AHEAD * workers + 1


def nbytes(array: Array) -> int:
    """Count the bytes of all rows of `array`."""
    return len(array) * array[np.zeros(1, np.int64)].nbytes if len(array) else 0


def in_memory(array: Array) -> bool:
    """Return whether reading rows only copies them, as from NumPy's arrays and maps of files."""
    while isinstance(array, Selected):
        array = array.array
    return isinstance(array, np.ndarray)
