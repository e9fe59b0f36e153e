"""Which examples make up a batch: a pure function of (seed, epoch).

So the number of processes, a restart or a different strategy cannot change what is trained on.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from contextlib import closing

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from ninefold.dataset import Array, Examples, varies
from ninefold.dataset.loader import gathered
from ninefold.dataset.preparation import Preparation, to_device
from ninefold.errors import DataError
from ninefold.parallel import Place

Mark = Callable[[str], None]

SMALL = 64  # values of a target up to which those of a whole epoch are put on the device at once


def epoch_order(seed: int, epoch: int, count: int) -> npt.NDArray[np.int64]:
    """The order in which epoch `epoch` visits examples 0..count-1: int64 [count]."""
    return np.random.default_rng([seed, epoch]).permutation(count)


class Batches:
    """This process's rows of the global batches of a training set."""

    def __init__(
        self,
        examples: Examples,
        batch_size: int,
        seed: int,
        prepare: Preparation,
        place: Place,
        workers: int = 0,
        pinned: bool = False,
    ) -> None:
        """`batch_size` is global and must divide by the processes. workers, pinned: see the loader.

        Raises DataError if the set is smaller than one batch.
        """
        if len(examples) < batch_size:
            raise DataError(
                "batch_size",
                batch_size,
                "larger than the training set",
                f"{len(examples)} examples found",
                "choose a smaller batch or a larger set",
            )
        self.steps_per_epoch = len(examples) // batch_size  # the rest waits for another order
        self._examples = examples
        self._batch_size = batch_size
        self._seed = seed
        self._prepare = prepare
        self._place = place
        self._workers, self._pinned = workers, pinned

    def rows(self, epoch: int) -> npt.NDArray[np.int64]:
        """The examples in this process's part of each batch of `epoch`: int64 [steps, rows]."""
        order = epoch_order(self._seed, epoch, len(self._examples))
        batches = order[: self.steps_per_epoch * self._batch_size].reshape(-1, self._batch_size)
        return batches[:, self._place.rank :: self._place.world_size]

    def epoch(
        self, epoch: int, start: int, begin: Callable[[], None], mark: Mark
    ) -> Iterator[tuple[Tensor, Tensor]]:
        """(inputs float32, targets as the task takes them) on the device, from batch `start` on.

        `begin` is called before each batch, `mark` with the phase that has just ended.
        """
        device, prepare = self._place.device, self._prepare
        examples = self._examples.in_epoch(self._seed, epoch)
        rows = self.rows(epoch)[start:]
        ready = small_targets(examples.targets, rows, device)
        arrays = [examples.inputs] if ready is not None else [examples.inputs, examples.targets]
        draws = prepare.draws(self._seed, epoch, rows, examples.inputs.shape, device)
        with closing(gathered(arrays, list(rows), self._workers, self._pinned)) as source:
            for number, draw in enumerate(draws):
                begin()
                read = next(source)
                mark("data")
                inputs, *rest = (values.to(device, non_blocking=True) for values in read)
                mark("transfer")
                targets = rest[0] if ready is None else ready[number]
                batch = prepare(inputs, targets, draw)
                mark("data")
                yield batch
                del read, inputs, rest, targets, batch  # the next one takes their memory


def small_targets(
    targets: Array, rows: npt.NDArray[np.int64], device: torch.device
) -> tuple[Tensor, ...] | None:
    """For each batch its targets, on the device with one copy; None if they are read with it.

    As large ones are, such as masks, and those that vary from epoch to epoch. rows: int64
    [batches, n].
    """
    if math.prod(targets.shape[1:]) > SMALL or varies(targets):
        return None
    values = torch.from_numpy(targets[rows.ravel()]).view(*rows.shape, *targets.shape[1:])
    return to_device(values, device).unbind()


def shard(
    examples: Examples,
    batch_size: int,
    prepare: Preparation,
    place: Place,
    workers: int = 0,
    pinned: bool = False,
) -> Iterator[tuple[Tensor, Tensor]]:
    """Every world_size-th example from this process's rank on, for evaluation: nothing padded.

    The shards of all processes hold each example once, whatever the sizes. `batch_size` is
    global, as in training.
    """
    mine = np.arange(len(examples))[place.rank :: place.world_size]
    size = max(1, batch_size // place.world_size)
    batches = [mine[first : first + size] for first in range(0, len(mine), size)]
    arrays = [examples.inputs, examples.targets]
    with closing(gathered(arrays, batches, workers, pinned)) as source:
        for read in source:
            inputs, targets = (values.to(place.device, non_blocking=True) for values in read)
            yield prepare(inputs, targets, None)
            del read, inputs, targets  # the next one takes their memory
