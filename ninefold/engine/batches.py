"""Which examples make up a batch: a pure function of (seed, epoch).

So the number of processes, a restart or a different strategy cannot change what is trained on.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from contextlib import closing
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt
import torch

from ninefold.engine.parallel import RankContext
from ninefold.errors import DataError
from ninefold.tree import Tree, moved

BatchReader = Generator[tuple[Tree, Tree], None, None]  # of inputs and targets

EVALUATED_EXAMPLES, EVALUATED_VALUES = 1024, 2**22  # see `evaluation_batch`


class Source(Protocol):
    """Examples to take batches of: HostSource on the host, or Resident on the device."""

    @property
    def shape(self) -> Tree:
        """Of all inputs, [n, channels, ...]."""

    def __len__(self) -> int: ...

    def in_epoch(self, seed: int, epoch: int) -> Source:
        """The examples as training with `seed` reads them in `epoch`."""

    def batches(self, rows: Sequence[npt.NDArray[np.int64]], device: torch.device) -> BatchReader:
        """For each of `rows`, in order, its inputs and targets, on `device` or to be copied there.

        Closing the generator ends what reads ahead. Raises what reading a row raises.
        """


class Preparation(Protocol):
    """Turns batches of a dataset into what a network and a task take.

    One draw moves an input and its target together: a mask is flipped with its image.
    """

    def draws(
        self, seed: int, epoch: int, rows: npt.NDArray[Any], shape: Tree, device: torch.device
    ) -> Iterable[Any]:
        """For each batch of an epoch what to draw for it, on the device; None draws nothing.

        rows: the examples of the batches, int64 [batches, n]. shape: of the inputs.
        """

    def __call__(self, inputs: Tree, targets: Tree, draw: Any) -> tuple[Tree, Tree]:
        """From a batch as the dataset has it to the network's inputs, images as float32, and the
        task's targets."""


def epoch_order(seed: int, epoch: int, count: int) -> npt.NDArray[np.int64]:
    """The order in which epoch `epoch` visits examples 0..count-1: int64 [count]."""
    return np.random.default_rng([seed, epoch]).permutation(count)


class Batches:
    """This process's rows of the global batches of a training set."""

    def __init__(
        self, source: Source, batch_size: int, seed: int, prepare: Preparation, context: RankContext
    ) -> None:
        """`batch_size` is global and must divide by the processes.

        Raises DataError if the set is smaller than one batch.
        """
        if len(source) < batch_size:
            allowed = f"examples found: {len(source)}"
            do = "choose a smaller batch or a larger set"
            raise DataError("batch_size", batch_size, "larger than the training set", allowed, do)
        self.steps_per_epoch = len(source) // batch_size  # the rest waits for another order
        self.source = source
        self._batch_size = batch_size
        self._seed = seed
        self._prepare = prepare
        self._context = context

    def rows(self, epoch: int) -> npt.NDArray[np.int64]:
        """The examples in this process's part of each batch of `epoch`: int64 [steps, rows]."""
        order = epoch_order(self._seed, epoch, len(self.source))
        batches = order[: self.steps_per_epoch * self._batch_size].reshape(-1, self._batch_size)
        return batches[:, self._context.rank :: self._context.world_size]

    def epoch(
        self,
        epoch: int,
        start: int = 0,
        begin: Callable[[], None] = lambda: None,
        mark: Callable[[str], None] = lambda phase: None,
    ) -> Iterator[tuple[Tree, Tree]]:
        """Yields the batches from number `start` on: inputs, images as float32, and targets, both
        on the device. What reads ahead ends with the generator, as when a loop over it is left.

        `begin` is called before each batch, `mark` with the phase that has just ended.
        """
        device, prepare = self._context.device, self._prepare
        source = self.source.in_epoch(self._seed, epoch)
        rows = self.rows(epoch)[start:]
        draws = prepare.draws(self._seed, epoch, rows, source.shape, device)
        with closing(source.batches(list(rows), device)) as reading:
            for draw in draws:
                begin()
                read = next(reading)
                mark("data")
                inputs, targets = (moved(values, device) for values in read)
                mark("transfer")
                batch = prepare(inputs, targets, draw)
                mark("data")
                yield batch
                del read, inputs, targets, batch  # else held while the next one is made


def shard(
    source: Source, batch_size: int, prepare: Preparation, context: RankContext
) -> Iterator[tuple[Tree, Tree]]:
    """Yields batches of every world_size-th example from number rank on, for evaluation.

    The shards of all processes hold each example once, whatever the sizes: nothing is padded, and
    the last batch may be short. `batch_size` is global, as in training.
    """
    mine = np.arange(len(source))[context.rank :: context.world_size]
    size = max(1, batch_size // context.world_size)
    batches = [mine[first : first + size] for first in range(0, len(mine), size)]
    with closing(source.batches(batches, context.device)) as reading:
        for read in reading:
            inputs, targets = (moved(values, context.device) for values in read)
            yield prepare(inputs, targets, None)
            del read, inputs, targets  # else held while the next one is made


def evaluation_batch(
    batch_size: int, accumulate: int, values: int | None, context: RankContext
) -> int:
    """The global size of the batches that a training run evaluates: that of a micro-batch.

    On CUDA a process takes at least EVALUATED_EXAMPLES, or fewer that have EVALUATED_VALUES
    together: a GPU waits for the host in batches of few small images, and large ones need its
    memory. What a network makes of tokens and the like may be much larger than they are.

    values: of an image or a volume as the network takes it; None: examples are something else.
    """
    micro_batch = batch_size // accumulate
    if values is None or context.device.type != "cuda":
        return micro_batch
    least = context.world_size * min(EVALUATED_EXAMPLES, EVALUATED_VALUES // values)
    return max(micro_batch, least)
