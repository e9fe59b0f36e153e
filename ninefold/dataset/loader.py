"""Batches of examples, read when they are asked for or ahead of that by threads or processes."""

from __future__ import annotations

from collections import deque
from collections.abc import Generator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import closing
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np
import torch
from torch import Tensor

from ninefold.dataset import Examples
from ninefold.dataset.arrays import Ahead, Array, Rows, Selected, varies
from ninefold.engine.batches import BatchReader
from ninefold.engine.parallel import RankContext
from ninefold.errors import ConfigError, ResourceError
from ninefold.tree import Tree, each, filled, leaves

AHEAD = 2  # batches that a worker reads ahead at most: DataLoader's prefetch_factor
MAX_THREADS = 8  # threads that `auto` starts at most
PREPARED = {"inputs": 4, "targets": 8}  # bytes of an element as float32 and int64
UNITS = ((1e9, "GB"), (1e6, "MB"), (1e3, "kB"))


@dataclass(frozen=True)
class HostSource:
    """Examples in arrays or files, of which each batch is read by the host. See `gathered`."""

    examples: Examples
    workers: int = 0
    pinned: bool = False

    @property
    def shape(self) -> Tree:
        return each(lambda array: array.shape, self.examples.inputs)

    def __len__(self) -> int:
        return len(self.examples)

    def in_epoch(self, seed: int, epoch: int) -> HostSource:
        return replace(self, examples=self.examples.in_epoch(seed, epoch))

    def batches(self, rows: Sequence[Rows], device: torch.device) -> BatchReader:
        both = (self.examples.inputs, self.examples.targets)
        if self.workers and self.examples.reader:
            reading = self.examples.reader(rows)
            reading = pinned(reading) if self.pinned else reading
        else:
            reading = gathered(self.examples.arrays, rows, self.workers, self.pinned)
        with closing(reading) as source:
            for _ in rows:
                yield filled(both, next(source))  # kept by no name: the next one takes its memory


@dataclass(frozen=True)
class LoaderPlan:
    """How each process of a run reads its batches.

    workers: that read ahead; 0: none. processes: whether they are processes, not threads.
    pinned: whether batches are read into page-locked memory, on CUDA.
    batch: bytes of a process's part of a batch, as the dataset has it.
    prepared: the same with float32 inputs and int64 targets.
    dtypes: of inputs and targets.
    resident: bytes of the examples that are copied to the GPU once; 0: none, they are read.
    """

    workers: int
    pinned: bool
    batch: int
    prepared: int
    dtypes: tuple[str, str]
    resident: int = 0
    processes: bool = False

    @property
    def slots(self) -> int:
        """Batches in memory at the same time: those read ahead, and the one in use."""
        return slots(self.workers)

    def __str__(self) -> str:
        if self.resident:
            return (
                f"loader: {amount(self.resident)} of examples are copied to the GPU once "
                "(dataset.resident), and batches are taken there"
            )
        inputs, targets = self.dtypes
        pinned = ", page-locked" if self.pinned else ""
        return (
            f"loader: {self.workers} {'process' if self.processes else 'thread'}"
            f"{'(es)' if self.processes else '(s)'}, {self.slots} slots of {amount(self.batch)} "
            f"({inputs} inputs, {targets} targets{pinned}) = {amount(self.slots * self.batch)}; "
            f"as float32 and int64 {amount(self.slots * self.prepared)}"
        )


def slots(workers: int) -> int:
    """Batches in memory, or in memory that processes share."""
    return AHEAD * workers + 1


def plan_loading(
    examples: Examples,
    rows: int,
    context: RankContext,
    *,
    workers: int | Literal["auto"],
    share: float,
    pinned: bool | Literal["auto"],
    free: int | None,
    cores: int | None,
) -> LoaderPlan:
    """How to read batches of `rows` examples of `examples` in each process.

    workers: threads, or processes where examples have a reader. auto: none for arrays in memory,
        nor where items vary from epoch to epoch; else threads, as many as `share` of the `free`
        bytes of memory and the cores allow, up to MAX_THREADS. On a CPU one, as training uses the
        cores.
    pinned: auto: on CUDA.
    free, cores: of this host; None: not known.
    Raises ResourceError if so many threads would need more memory than is allowed, and ConfigError
    if pinned memory is asked for without a GPU.
    """
    one = np.zeros(1, np.int64)
    read = {
        name: [array[one] for array in leaves(arrays)]
        for name, arrays in (("inputs", examples.inputs), ("targets", examples.targets))
    }
    batch = rows * sum(array.nbytes for array in leaves(read))
    prepared = rows * sum(a.size * PREPARED[name] for name, arrays in read.items() for a in arrays)
    on_gpu = context.device.type == "cuda"
    if pinned is True and not on_gpu:
        raise ConfigError(
            "loader.pinned",
            "true",
            f"batches stay in main memory (device {context.device}); it speeds up copies to a GPU; "
            "auto and false are allowed on a CPU; leave it out",
        )
    allowed = None if free is None else int(share * free) // context.local_size
    fitting = MAX_THREADS if allowed is None else (allowed // max(batch, 1) - 1) // AHEAD
    if workers == "auto":
        spare = (cores or 1) // context.local_size - 1 if on_gpu else 1
        arrays = leaves(examples.inputs)
        none = all(map(in_memory, arrays)) or any(map(varies, arrays))
        count = 0 if none else max(0, min(MAX_THREADS, fitting, spare))
    else:
        count = workers
    needed = slots(count)
    if count and allowed is not None and needed * batch > allowed:
        raise ResourceError(
            "loader.workers",
            count,
            f"{needed} slots of {amount(batch)} are {amount(needed * batch)}; "
            f"{amount(allowed)} are allowed (loader.share {share:g} of the free memory, for "
            f"{context.local_size} process(es)); use {max(0, fitting)} at most, or a smaller batch",
        )
    inputs, targets = ("+".join(str(a.dtype) for a in arrays) for arrays in read.values())
    dtypes, page_locked = (inputs, targets), on_gpu and pinned is not False
    processes = examples.reader is not None
    return LoaderPlan(count, page_locked, batch, prepared, dtypes, processes=processes)


def pinned(reading: Ahead) -> Ahead:
    """The same in page-locked memory."""
    with closing(reading):
        for tensors in reading:
            yield [tensor.pin_memory() for tensor in tensors]


def in_memory(array: Array) -> bool:
    """Whether reading rows only copies them, as from NumPy's arrays and maps of files."""
    while isinstance(array, Selected):
        array = array.array
    return isinstance(array, np.ndarray)


def amount(count: float) -> str:
    """A number of bytes in decimal units, with three digits."""
    size, unit = next((each for each in UNITS if count >= each[0]), (1, "B"))
    return f"{count / size:.3g} {unit}"


def gathered(
    arrays: Sequence[Array], batches: Sequence[Rows], workers: int, pinned: bool = False
) -> Generator[list[Tensor], None, None]:
    """For each of `batches`, in order, its rows of each of `arrays`, in memory.

    workers: threads that read ahead, each a whole batch; 0: read when asked for. Decoding images
        and reading files release the GIL, so training computes meanwhile. Closing the generator
        ends them, after the batches that they are reading.
    pinned: read into page-locked memory, for copies to a GPU. torch keeps the memory of earlier
        batches and uses it again once it is copied, so that it is locked once.

    Raises what reading a row raises, and ResourceError if no thread can be started.
    """

    def read(rows: Rows) -> list[Tensor]:
        tensors = [torch.from_numpy(array[rows]) for array in arrays]
        return [tensor.pin_memory() for tensor in tensors] if pinned else tensors

    if not workers:
        yield from map(read, batches)
        return
    waiting: deque[Future[list[Tensor]]] = deque()
    pool = ThreadPoolExecutor(workers, thread_name_prefix="loader")
    try:
        for rows in batches:
            try:
                waiting.append(pool.submit(read, rows))
            except RuntimeError as error:  # the first ones start a thread each
                raise ResourceError(
                    "loader.workers",
                    workers,
                    f"no loader thread can be started ({error}); each takes some memory and "
                    "counts as a process; lower loader.workers; 0 starts none",
                ) from error
            if len(waiting) > AHEAD * workers:
                yield waiting.popleft().result()
        while waiting:
            yield waiting.popleft().result()
    finally:
        pool.shutdown(cancel_futures=True)
