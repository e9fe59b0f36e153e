"""From bytes to a network's input on the device: augmentation, resizing, normalization.

All of it is a pure function of (seed, epoch, example).
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt
import torch
import torch.nn.functional as F
from torch import Tensor

from ninefold.dataset import Rows
from ninefold.errors import ConfigError

AT_ONCE = 8  # images that a CPU resizes: few enough to be in its cache when they are scaled
PIECE = 2**19  # values that a CPU converts at a time, for the same reason


class Preparation(Protocol):
    """How batches of a dataset become what a network and a task take.

    One draw moves an input and its target together: a mask is flipped with its image.
    """

    def draws(
        self, seed: int, epoch: int, rows: Rows, shape: tuple[int, ...], device: torch.device
    ) -> Iterable[Any]:
        """For each batch of an epoch what to draw for it, on the device; None draws nothing.

        rows: the examples of the batches, int64 [batches, n]. shape: of the inputs.
        """

    def __call__(self, inputs: Tensor, targets: Tensor, draw: Any) -> tuple[Tensor, Tensor]:
        """From a batch as the dataset has it to float32 inputs and the task's targets."""


def random_bits(seed: int, epoch: int, indices: npt.NDArray[np.int64]) -> npt.NDArray[np.uint64]:
    """64 random bits for each example: uint64 like `indices`, of (seed, epoch, index) alone.

    The finalizer of SplitMix64 (Steele, Lea and Flood, 2014) over a key from NumPy's seeding.
    """
    key = np.random.SeedSequence([seed, epoch]).generate_state(1, np.uint64)
    with np.errstate(over="ignore"):
        bits = key + indices.astype(np.uint64) * np.uint64(0x9E3779B97F4A7C15)
        bits = (bits ^ (bits >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        bits = (bits ^ (bits >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        return np.asarray(bits ^ (bits >> np.uint64(31)))


@dataclass(frozen=True)
class ImagePreparation:
    """Images uint8 [n, c, h, w], with classes int64 [n] or masks uint8 or int16 [n, h, w].

    Masks are flipped and cropped with their images, never resized: a task resizes the output.

    channels: gray images are repeated to so many.
    size: pixels to resize to, None to leave; bilinear, antialiased where that makes images
        smaller, and rounded to whole gray levels, of which none is more than one off Pillow's.
    mean, std: per channel, of pixels in 0..1; None leaves them in 0..1.
    flip: mirror half of the images, drawn at random.
    crop: pixels of padding before a random crop; 0 = none.
    outside: the class of a mask's pixels in that padding; in the image they are 0.
    """

    channels: int
    size: int | None = None
    mean: Sequence[float] | None = None
    std: Sequence[float] | None = None
    flip: bool = False
    crop: int = 0
    memory_format: torch.memory_format = torch.contiguous_format
    outside: int = 0

    def draws(
        self, seed: int, epoch: int, rows: Rows, shape: tuple[int, ...], device: torch.device
    ) -> Iterable[Tensor | None]:
        """For each batch where `augmented` finds its examples: int64 [n], or None to leave them."""
        if not (self.flip or self.crop):
            return itertools.repeat(None, len(rows))
        bits = random_bits(seed, epoch, rows)
        channels, height, width = shape[-3:]
        across, count = width + 2 * self.crop, rows.shape[1]
        plane = across * (height + 2 * self.crop)
        places = np.uint64(2 * self.crop + 1)
        top, left = (bits >> np.uint64(8)) % places, (bits >> np.uint64(32)) % places
        twin = (bits & np.uint64(self.flip)) * np.uint64(count)  # its mirror image comes after all
        image = (twin + np.arange(count, dtype=np.uint64)) * np.uint64(channels * plane)
        corners = image + top * np.uint64(across) + left
        return to_device(torch.from_numpy(corners.astype(np.int64)), device).unbind()

    def __call__(
        self, inputs: Tensor, targets: Tensor, draw: Tensor | None
    ) -> tuple[Tensor, Tensor]:
        """To float32 [n, channels, size, size], and targets of the same dtype."""
        if targets.ndim > 1:
            targets = self._mask(inputs, targets, draw)
        return self.scaled(self.augmented(inputs, draw)), targets

    def augmented(self, images: Tensor, corners: Tensor | None, outside: int = 0) -> Tensor:
        """[n, c, h, w] to the same, mirrored and cropped as `corners` say."""
        if corners is None:
            return images
        count, channels, height, width = images.shape
        edge, across = self.crop, width + 2 * self.crop
        size = (1 + self.flip, count, channels, height + 2 * edge, across)
        padded = images.new_full(size, outside)
        inner = padded[..., edge : edge + height, edge : edge + width]
        inner[0] = images
        if self.flip:
            inner[1] = images.flip(3)
        # A row of a result is a run of pixels, which may begin at any: each begins one of `runs`.
        runs = padded.as_strided((padded.numel() - width + 1, width), (1, 1))
        rows = row_offsets(channels, height, across, edge, images.device)
        return runs.index_select(0, (corners[:, None] + rows).flatten()).view(images.shape)

    def scaled(self, images: Tensor) -> Tensor:
        """uint8 [n, c, h, w] to float32 [n, channels, size, size]."""
        if images.shape[1] != self.channels:
            images = images.expand(-1, self.channels, -1, -1)
        images = images.contiguous(memory_format=self.memory_format)
        if self.size is None or tuple(images.shape[2:]) == (self.size,) * 2:
            return self._converted(images)
        if images.device.type != "cpu":  # bytes are resized on a CPU only
            floats = resized(images.to(torch.float32), self.size).round_()
            return self._normalize(floats.contiguous(memory_format=self.memory_format))
        shape = (*images.shape[:2], self.size, self.size)
        floats = torch.empty(shape, memory_format=self.memory_format)
        for some, into in zip(images.split(AT_ONCE), floats.split(AT_ONCE), strict=True):
            self._normalize(into.copy_(resized(some, self.size)))
        return floats

    def _converted(self, images: Tensor) -> Tensor:
        """uint8 [n, c, h, w] to float32 of the same size."""
        if images.device.type != "cpu" or images.numel() <= PIECE:
            return self._normalize(images.to(torch.float32))
        floats = torch.empty(images.shape, memory_format=self.memory_format)
        count = max(1, PIECE * len(images) // images.numel())
        for some, into in zip(images.split(count), floats.split(count), strict=True):
            self._normalize(into.copy_(some))
        return floats

    def _mask(self, images: Tensor, masks: Tensor, corners: Tensor | None) -> Tensor:
        """Masks [n, h, w], moved as their images [n, c, h, w] are."""
        if masks.shape[1:] != images.shape[2:] or masks.is_floating_point():
            raise ConfigError(
                "dataset",
                list(masks.shape[1:]),
                "its targets cannot be prepared with its images",
                f"classes [n] and masks [n, {images.shape[2]}, {images.shape[3]}] can be",
                "give the dataset a method `preparation` for its own kind of targets",
            )
        if corners is not None:
            plane = (images.shape[2] + 2 * self.crop) * (images.shape[3] + 2 * self.crop)
            image = images.shape[1] * plane  # a mask has one plane where its image has some
            corners = corners // image * plane + corners % image
        return self.augmented(masks[:, None], corners, self.outside)[:, 0]

    def _normalize(self, floats: Tensor) -> Tensor:
        """Pixels in 0..255 to 0..1 or normalized, in place."""
        if self.mean is None or self.std is None:
            return floats.div_(255)
        mean, std, width = tuple(self.mean), tuple(self.std), floats.shape[3]
        scale, shift = normalizing(
            mean, std, floats.shape[1], width, self.memory_format, floats.device
        )
        return floats.mul_(scale).add_(shift)


@dataclass(frozen=True)
class TypedPreparation(ImagePreparation):
    """Bytes as ImagePreparation takes them; floats as they are, with `mean` and `std` alone.

    inputs: uint8 or float32, [n, c, h, w] or volumes [n, c, d, h, w], which are not resized.
    targets: classes int64 [n], masks uint8 or int16 [n, (d,) h, w], or float32 of any shape, such
        as points, which are left as they are.
    """

    def __call__(
        self, inputs: Tensor, targets: Tensor, draw: Tensor | None
    ) -> tuple[Tensor, Tensor]:
        """Raises ConfigError where a volume, or an image with points, would be resized."""
        volume, points = inputs.ndim == 5, targets.is_floating_point()
        resizes = self.size is not None and set(inputs.shape[2:]) != {self.size}
        if resizes and (volume or (points and targets.ndim > 1)):
            raise ConfigError(
                "model.input_size",
                self.size,
                f"{'volumes' if volume else 'images with points'} are not resized",
                f"dataset.shape is {list(inputs.shape[1:])}",
                "set model.input_size=null, or resize them in the class",
            )
        if points:
            return self.scaled(self.augmented(inputs, draw)), targets
        return super().__call__(inputs, targets, draw)

    def scaled(self, images: Tensor) -> Tensor:
        """To float32, resized, in the memory format, normalized."""
        volume = images.ndim == 5
        if not images.is_floating_point():
            if not volume:
                return super().scaled(images)
            images = images.to(torch.float32).div_(255)
        if images.shape[1] != self.channels:
            images = images.expand(-1, self.channels, *images.shape[2:])
        if self.size is not None and not volume and tuple(images.shape[2:]) != (self.size,) * 2:
            images = resized(images, self.size)
        layout = self.memory_format
        if volume and layout == torch.channels_last:
            layout = torch.channels_last_3d
        images = images.contiguous(memory_format=layout)
        if self.mean is None or self.std is None:
            return images
        each = (-1, *[1] * (images.ndim - 2))
        mean, std = (
            torch.tensor(values, device=images.device).view(each)
            for values in (self.mean, self.std)
        )
        return (images - mean) / std


@dataclass(frozen=True)
class VolumePreparation:
    """Volumes uint8 or int16 [n, c, d, h, w] to float32 in 0..1, with targets of any kind.

    Nothing is drawn: a flip would exchange left and right. The arguments are ImagePreparation's.
    """

    channels: int
    size: int | None = None
    mean: Sequence[float] | None = None
    std: Sequence[float] | None = None
    flip: bool = False
    crop: int = 0
    memory_format: torch.memory_format = torch.contiguous_format

    def __post_init__(self) -> None:
        """Raises ConfigError for what is done with images only."""
        for key in ("size", "mean", "std", "flip", "crop"):
            if value := getattr(self, key):
                raise ConfigError(
                    "model.input_size" if key == "size" else f"dataset.{key}",
                    value,
                    "this is done with images only, not with volumes",
                    "null, false or 0 is allowed; dataset.shape and dataset.spacing set the size",
                    "leave it out",
                )

    def draws(
        self, seed: int, epoch: int, rows: Rows, shape: tuple[int, ...], device: torch.device
    ) -> Iterable[None]:
        return itertools.repeat(None, len(rows))

    def __call__(self, inputs: Tensor, targets: Tensor, draw: None) -> tuple[Tensor, Tensor]:
        """To float32 [n, channels, d, h, w] in 0..1, the largest number of the dtype being 1."""
        if inputs.shape[1] != self.channels:
            inputs = inputs.expand(-1, self.channels, *inputs.shape[2:])
        floats = inputs.to(torch.float32, memory_format=self.memory_format)
        return floats.div_(torch.iinfo(inputs.dtype).max), targets


def resized(images: Tensor, size: int) -> Tensor:
    """[n, c, h, w] to [n, c, size, size], of the same dtype and memory format."""
    return F.interpolate(images, size, mode="bilinear", align_corners=False, antialias=True)


@functools.cache
def row_offsets(channels: int, height: int, across: int, edge: int, device: torch.device) -> Tensor:
    """From an example's corner to each of its rows, in padded pixels: int64 [channels * height]."""
    planes = torch.arange(channels)[:, None] * across * (height + 2 * edge)
    return (planes + torch.arange(height) * across).flatten().to(device)


@functools.cache
def normalizing(
    mean: tuple[float, ...],
    std: tuple[float, ...],
    channels: int,
    width: int,
    memory_format: torch.memory_format,
    device: torch.device,
) -> tuple[Tensor, Tensor]:
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
