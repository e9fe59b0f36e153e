"""Which examples make up a batch, and how their bytes become a device's floats.

All of it is a pure function of (seed, epoch, example), so that the number of processes, a
restart or a different strategy cannot change what is trained on.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
import torch.nn.functional as F
from torch import Tensor

from ninefold.dataset import Examples, Rows
from ninefold.dataset.loader import gathered
from ninefold.errors import DataError
from ninefold.parallel import Place

Mark = Callable[[str], None]

AT_ONCE = 8  # images that a CPU resizes: few enough to be in its cache when they are scaled


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

    channels: gray images are repeated to so many. size: pixels to resize to (None: leave);
    bilinear, antialiased where that makes them smaller, and rounded to whole gray levels, of which
    none is more than one off Pillow's. mean, std: per channel, of pixels in 0..1 (None: leave
    them in 0..1).
    """

    channels: int
    size: int | None = None
    mean: Sequence[float] | None = None
    std: Sequence[float] | None = None
    flip: bool = False
    crop: int = 0
    memory_format: torch.memory_format = torch.contiguous_format

    def corners(
        self, seed: int, epoch: int, rows: Rows, images: tuple[int, ...], device: torch.device
    ) -> Iterable[Tensor | None]:
        """For each batch where `augment` finds its examples: int64 [n], or None to leave them.

        rows: the examples of the batches, int64 [batches, n]. images: shape, of which the last
        three matter.
        """
        if not (self.flip or self.crop):
            return itertools.repeat(None, len(rows))
        bits = draws(seed, epoch, rows)
        channels, height, width = images[-3:]
        across, count = width + 2 * self.crop, rows.shape[1]
        plane = across * (height + 2 * self.crop)
        places = np.uint64(2 * self.crop + 1)
        top, left = (bits >> np.uint64(8)) % places, (bits >> np.uint64(32)) % places
        twin = (bits & np.uint64(self.flip)) * np.uint64(count)  # its mirror image comes after all
        image = (twin + np.arange(count, dtype=np.uint64)) * np.uint64(channels * plane)
        corners = image + top * np.uint64(across) + left
        return to_device(torch.from_numpy(corners.astype(np.int64)), device).unbind()

    def augment(self, images: Tensor, corners: Tensor | None) -> Tensor:
        """uint8 [n, c, h, w] to the same, mirrored and cropped as `corners` say."""
        if corners is None:
            return images
        count, channels, height, width = images.shape
        edge, across = self.crop, width + 2 * self.crop
        padded = images.new_zeros(1 + self.flip, count, channels, height + 2 * edge, across)
        inner = padded[..., edge : edge + height, edge : edge + width]
        inner[0] = images
        if self.flip:
            inner[1] = images.flip(3)
        # A row of a result is a run of bytes, which may begin at any: each begins a row of `runs`.
        runs = padded.as_strided((padded.numel() - width + 1, width), (1, 1))
        rows = row_offsets(channels, height, across, edge, images.device)
        return runs.index_select(0, (corners[:, None] + rows).flatten()).view(images.shape)

    def __call__(self, images: Tensor) -> Tensor:
        """uint8 [n, c, h, w] to float32 [n, channels, size, size]."""
        if images.shape[1] != self.channels:
            images = images.expand(-1, self.channels, -1, -1)
        images = images.contiguous(memory_format=self.memory_format)
        if self.size is None or tuple(images.shape[2:]) == (self.size,) * 2:
            return self._scale(images.to(torch.float32))
        if images.device.type != "cpu":  # bytes are resized on a CPU only
            floats = resized(images.to(torch.float32), self.size).round_()
            return self._scale(floats.contiguous(memory_format=self.memory_format))
        shape = (*images.shape[:2], self.size, self.size)
        floats = torch.empty(shape, memory_format=self.memory_format)
        for some, into in zip(images.split(AT_ONCE), floats.split(AT_ONCE), strict=True):
            self._scale(into.copy_(resized(some, self.size)))
        return floats

    def _scale(self, floats: Tensor) -> Tensor:
        """Pixels in 0..255 to 0..1 or normalized, in place."""
        if self.mean is None or self.std is None:
            return floats.div_(255)
        scale, shift = normalizing(
            tuple(self.mean), tuple(self.std), floats.shape[1], floats.shape[3],
            self.memory_format, floats.device,
        )  # fmt: skip
        return floats.mul_(scale).add_(shift)


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

    def rows(self, epoch: int) -> npt.NDArray[np.int64]:
        """The examples in this process's part of each batch of `epoch`: int64 [steps, rows]."""
        order = epoch_order(self._seed, epoch, len(self._examples))
        batches = order[: self.steps_per_epoch * self._batch_size].reshape(-1, self._batch_size)
        return batches[:, self._place.rank :: self._place.world_size]

    def epoch(
        self, epoch: int, start: int, begin: Callable[[], None], mark: Mark
    ) -> Iterator[tuple[Tensor, Tensor]]:
        """(inputs float32, targets int64) on the device, from batch `start` on.

        `begin` is called before each batch, `mark` with the phase that has just ended.
        """
        device, prepare = self._place.device, self._prepare
        rows = self.rows(epoch)[start:]
        labels = to_device(torch.from_numpy(self._examples.labels[rows]), device)
        shape = self._examples.images.shape
        corners = prepare.corners(self._seed, epoch, rows, shape, device)
        with closing(gathered(self._examples.images, list(rows), self._workers)) as source:
            for targets, corner in zip(labels, corners, strict=True):
                begin()
                images = next(source)
                mark("data")
                images = to_device(images, device)
                mark("transfer")
                inputs = prepare(prepare.augment(images, corner))
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


def resized(images: Tensor, size: int) -> Tensor:
    """[n, c, h, w] to [n, c, size, size], of the same dtype and memory format."""
    return F.interpolate(images, size, mode="bilinear", align_corners=False, antialias=True)


@functools.cache
def row_offsets(channels: int, height: int, across: int, edge: int, device: torch.device) -> Tensor:
    """From an example's corner to each of its rows, in padded bytes: int64 [channels * height]."""
    planes = torch.arange(channels)[:, None] * across * (height + 2 * edge)
    return (planes + torch.arange(height) * across).flatten().to(device)


@functools.cache
def normalizing(
    mean: tuple[float, ...], std: tuple[float, ...], channels: int, width: int,
    memory_format: torch.memory_format, device: torch.device,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """What to multiply pixels in 0..255 by and to add then: float32 [1, channels, 1, width].

    A whole row, in the images' own memory format: read along with them it costs nothing, where 3
    values for the channels would be read over and over. On the device once: each copy would make
    the host wait.
    """
    deviation = torch.tensor(std, dtype=torch.float64)
    pair = 1 / (255 * deviation), -torch.tensor(mean, dtype=torch.float64) / deviation
    scale, shift = (
        values.float()[None, :, None, None]
        .expand(1, channels, 1, width)
        .contiguous(memory_format=memory_format)
        .to(device)
        for values in pair
    )
    return scale, shift


def to_device(tensor: Tensor, device: torch.device) -> Tensor:
    """`tensor` on `device`, copied without making the host wait."""
    if device.type == "cuda":
        return tensor.pin_memory().to(device, non_blocking=True)
    return tensor if device.type == "cpu" else tensor.to(device)
