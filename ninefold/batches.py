"""Which examples make up a batch, and how their bytes become a device's floats.

All of it is a pure function of (seed, epoch, example), so that the number of processes, a
restart or a different strategy cannot change what is trained on.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
import torch.nn.functional as F
from torch import Tensor

from ninefold.dataset import Examples
from ninefold.errors import DataError
from ninefold.loader import gathered
from ninefold.parallel import Place

Mark = Callable[[str], None]


def epoch_order(seed: int, epoch: int, count: int) -> npt.NDArray[np.int64]:
    """The order in which epoch `epoch` visits examples 0..count-1: int64 [count]."""
    return np.random.default_rng([seed, epoch]).permutation(count)


def draws(seed: int, epoch: int, indices: npt.NDArray[np.int64]) -> npt.NDArray[np.uint64]:
    """64 random bits for each example: uint64 [n], a function of (seed, epoch, index) alone.

    The finalizer of SplitMix64 (Steele, Lea and Flood, 2014) over a key from NumPy's seeding.
    """
    key = np.random.SeedSequence([seed, epoch]).generate_state(1, np.uint64)
    with np.errstate(over="ignore"):
        bits = key + indices.astype(np.uint64) * np.uint64(0x9E3779B97F4A7C15)
        bits = (bits ^ (bits >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        bits = (bits ^ (bits >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        return np.asarray(bits ^ (bits >> np.uint64(31)))


@dataclass(frozen=True)
class Preparation:
    """From bytes to a model's input, on the device.

    channels: gray images are repeated to so many. size: pixels to resize to, bilinear (None:
    leave). mean, std: per channel, of pixels in 0..1 (None: leave them in 0..1).
    """

    channels: int
    size: int | None = None
    mean: Sequence[float] | None = None
    std: Sequence[float] | None = None
    flip: bool = False
    crop: int = 0
    memory_format: torch.memory_format = torch.contiguous_format

    def augment(self, images: Tensor, bits: npt.NDArray[np.uint64]) -> Tensor:
        """uint8 [n, c, h, w] to the same, mirrored and cropped as `bits` say."""
        if self.flip:
            mirrored = to_device(
                torch.from_numpy((bits & np.uint64(1)).astype(bool)), images.device
            )
            images = torch.where(mirrored[:, None, None, None], images.flip(3), images)
        if self.crop:
            height, width = images.shape[2:]
            places = np.uint64(2 * self.crop + 1)
            padded = F.pad(images, [self.crop] * 4)
            corner = np.stack([(bits >> np.uint64(8)) % places, (bits >> np.uint64(32)) % places])
            top, left = to_device(torch.from_numpy(corner.astype(np.int64)), images.device)
            rows = top[:, None] + torch.arange(height, device=images.device)
            columns = left[:, None] + torch.arange(width, device=images.device)
            example = torch.arange(len(images), device=images.device)
            images = padded[example[:, None, None], :, rows[:, :, None], columns[:, None, :]]
            images = images.permute(0, 3, 1, 2)
        return images

    def __call__(self, images: Tensor) -> Tensor:
        """uint8 [n, c, h, w] to float32 [n, channels, size, size]."""
        floats = images.to(torch.float32).div_(255)
        if self.size is not None and tuple(floats.shape[2:]) != (self.size,) * 2:
            floats = F.interpolate(floats, self.size, mode="bilinear", align_corners=False)
        if self.mean is not None and self.std is not None:
            mean = per_channel(tuple(self.mean), floats.device)
            floats = (floats - mean) / per_channel(tuple(self.std), floats.device)
        floats = floats.expand(-1, self.channels, -1, -1)
        return floats.contiguous(memory_format=self.memory_format)


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
    ) -> None:
        """`batch_size` is global and must divide by the processes. `workers`: see the loader.

        Raises DataError if the set is smaller than one batch.
        """
        if len(examples) < batch_size:
            raise DataError(
                "batch_size", batch_size, "larger than the training set",
                f"{len(examples)} examples found", "choose a smaller batch or a larger set",
            )  # fmt: skip
        self.steps_per_epoch = len(examples) // batch_size  # the rest waits for another order
        self._examples = examples
        self._batch_size = batch_size
        self._seed = seed
        self._prepare = prepare
        self._place = place
        self._workers = workers

    def rows(self, epoch: int, step: int) -> npt.NDArray[np.int64]:
        """The examples in this process's part of batch `step` of `epoch`."""
        order = epoch_order(self._seed, epoch, len(self._examples))
        return self._rows(order, step)

    def _rows(self, order: npt.NDArray[np.int64], step: int) -> npt.NDArray[np.int64]:
        first = step * self._batch_size
        return order[first : first + self._batch_size][self._place.rank :: self._place.world_size]

    def epoch(
        self, epoch: int, start: int, begin: Callable[[], None], mark: Mark
    ) -> Iterator[tuple[Tensor, Tensor]]:
        """(inputs float32, targets int64) on the device, from batch `start` on.

        `begin` is called before each batch, `mark` with the phase that has just ended.
        """
        device = self._place.device
        order = epoch_order(self._seed, epoch, len(self._examples))
        batches = [self._rows(order, step) for step in range(start, self.steps_per_epoch)]
        with closing(gathered(self._examples.images, batches, self._workers)) as source:
            for rows in batches:
                begin()
                images, targets = next(source), torch.from_numpy(self._examples.labels[rows])
                mark("data")
                images, targets = to_device(images, device), to_device(targets, device)
                mark("transfer")
                bits = draws(self._seed, epoch, rows)
                inputs = self._prepare(self._prepare.augment(images, bits))
                mark("data")
                yield inputs, targets


def shard(
    examples: Examples, batch_size: int, prepare: Preparation, place: Place, workers: int = 0
) -> Iterator[tuple[Tensor, Tensor]]:
    """Every world_size-th example from this process's rank on, for evaluation: nothing padded.

    The shards of all processes hold each example once, whatever the sizes. `batch_size` is
    global, as in training.
    """
    mine = np.arange(len(examples))[place.rank :: place.world_size]
    size = max(1, batch_size // place.world_size)
    batches = [mine[first : first + size] for first in range(0, len(mine), size)]
    with closing(gathered(examples.images, batches, workers)) as source:
        for rows, images in zip(batches, source, strict=True):
            targets = torch.from_numpy(examples.labels[rows])
            yield prepare(to_device(images, place.device)), to_device(targets, place.device)


@functools.cache
def per_channel(values: tuple[float, ...], device: torch.device) -> Tensor:
    """float32 [channels, 1, 1], copied to the device once: each copy would make the host wait."""
    return torch.tensor(values, device=device)[:, None, None]


def to_device(tensor: Tensor, device: torch.device) -> Tensor:
    """`tensor` on `device`, copied without making the host wait."""
    if device.type == "cuda":
        return tensor.pin_memory().to(device, non_blocking=True)
    return tensor.to(device)
