"""Batches of examples, read when they are asked for or ahead of that by threads or processes."""

from __future__ import annotations

from collections import deque
from collections.abc import Generator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import closing
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from ninefold.dataset import Examples
from ninefold.dataset.arrays import Array, Reading, Rows
from ninefold.engine.batches import BatchReader
from ninefold.tree import Tree, each, filled

AHEAD = 2  # batches that a worker reads ahead at most: DataLoader's prefetch_factor


@dataclass(frozen=True)
class HostSource:
    """Examples in arrays, files or items, of which the host reads each batch. See `gathered`."""

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
        if self.examples.reader:
            reading = self.examples.reader(rows, ahead=self.workers > 0)
            reading = pinned(reading) if self.pinned else reading
            yield from one_ahead(reading) if self.pinned and self.workers else reading
            return
        both = (self.examples.inputs, self.examples.targets)
        with closing(gathered(self.examples.arrays, rows, self.workers, self.pinned)) as source:
            for _ in rows:
                yield filled(both, next(source))  # kept by no name: the next one takes its memory


def pinned(reading: Reading) -> Reading:
    """The same in page-locked memory."""
    with closing(reading):
        for both in reading:
            yield each(lambda tensor: tensor.pin_memory(), both)


def one_ahead(reading: Reading) -> Reading:
    """The same, where a thread reads a batch, and locks its memory, while training uses another."""
    with closing(reading), ThreadPoolExecutor(1, thread_name_prefix="pinning") as thread:
        coming = thread.submit(next, reading, None)
        while (found := coming.result()) is not None:
            coming = thread.submit(next, reading, None)
            yield found
            del found


def gathered(
    arrays: Sequence[Array], batches: Sequence[Rows], workers: int, pinned: bool = False
) -> Generator[list[Tensor], None, None]:
    """For each of `batches`, in order, its rows of each of `arrays`, in memory.

    workers: threads that read ahead, each a whole batch; 0: read when asked for. Decoding images
        and reading files release the GIL, so training computes meanwhile. Closing the generator
        ends them, after the batches that they are reading.
    pinned: read into page-locked memory, for copies to a GPU. torch keeps the memory of earlier
        batches and uses it again once it is copied, so that it is locked once.

    Raises what reading a row raises, and RuntimeError if no thread can be started.
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
            waiting.append(pool.submit(read, rows))
            if len(waiting) > AHEAD * workers:
                yield waiting.popleft().result()
        while waiting:
            yield waiting.popleft().result()
    finally:
        pool.shutdown(cancel_futures=True)
