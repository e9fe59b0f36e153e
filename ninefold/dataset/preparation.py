"""From bytes to a network's input on the device: augmentation, resizing, normalization.

All of it is a pure function of (seed, epoch, example).
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
import torch.nn.functional as F
from torch import Tensor

from ninefold.dataset.arrays import Rows
from ninefold.errors import ConfigError
from ninefold.tree import Tree, each

PIECE = 2**19  # values that a CPU converts at a time: few enough to stay in its cache


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
    """Images [n, c, h, w] and volumes [n, c, d, h, w] to float32; leaves other inputs.

    Bytes and integers are divided by the largest number of their dtype, floats are not. Of a tree
    of inputs the images are prepared. Masks of images, integers [n, h, w], are flipped and cropped
    with them, never resized: a task resizes the output. Other targets are left as they are; of
    no values [n, 0]: what the network gets is its target too.

    channels: gray images are repeated to so many; None: they are not.
    size: side in pixels of the square to resize to; None: leave. Bilinear, antialiased where it
        shrinks, rounded to whole gray levels; at most one level off what Pillow's resize gives.
    mean, std: per channel, of pixels in 0..1; None leaves them in 0..1.
    flip: mirror half of the images, drawn at random.
    crop: pixels of padding before a random crop; 0 = none.
    outside: the class of a mask's pixels in that padding; in the image they are 0.
    """

    channels: int | None
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
        """For each batch where `augmented` reads its examples from: offsets int64 [n]; None: as is.

        shape: of all inputs. Raises ConfigError where these are no images.
        """
        if not (self.flip or self.crop):
            return itertools.repeat(None, len(rows))
        if not isinstance(shape, tuple) or len(shape) != 4:
            raise self._unmoved(f"inputs of the shape {shape}")
        count, (_, channels, height, width) = rows.shape[1], shape
        bits = random_bits(seed, epoch, rows)
        across = width + 2 * self.crop
        plane = across * (height + 2 * self.crop)
        places = np.uint64(2 * self.crop + 1)
        top, left = (bits >> np.uint64(8)) % places, (bits >> np.uint64(32)) % places
        twin = (bits & np.uint64(self.flip)) * np.uint64(count)  # its mirror image comes after all
        image = (twin + np.arange(count, dtype=np.uint64)) * np.uint64(channels * plane)
        corners = (image + top * np.uint64(across) + left).astype(np.int64)
        return to_device(torch.from_numpy(corners), device).unbind()

    def __call__(self, inputs: Tree, targets: Tree, draw: Tensor | None) -> tuple[Tree, Tree]:
        """Raises ConfigError for what would be resized, or moved, and cannot be."""
        if isinstance(targets, Tensor) and targets.shape[1:] == (0,):  # items without one
            inputs, _ = self(inputs, targets.new_empty(len(targets)), draw)
            return inputs, inputs
        if not isinstance(inputs, Tensor) or not is_image(inputs):
            return each(lambda some: self.scaled(some) if is_image(some) else some, inputs), targets
        whole = isinstance(targets, Tensor) and not targets.is_floating_point()
        masks = whole and targets.shape[1:] == inputs.shape[2:]  # class numbers of the pixels
        volume = inputs.ndim == 5
        points = not masks and not (isinstance(targets, Tensor) and targets.ndim == 1)
        resizes = self.size is not None and set(inputs.shape[2:]) != {self.size}
        if resizes and (volume or points):
            wrong = f"{'volumes' if volume else 'images with points'} are not resized"
            allowed = f"dataset.shape is {list(inputs.shape[1:])}"
            do = "set model.input_size=null, or resize them in the class"
            raise ConfigError("model.input_size", self.size, wrong, allowed, do)
        if draw is not None and points and not (isinstance(targets, Tensor) and targets.ndim == 2):
            raise self._unmoved("images with targets that are neither labels nor masks")
        if masks:
            if self.crop and targets.dtype == torch.bool:  # which has no number for void
                targets = targets.byte()
            corners = None if draw is None else self.mask_corners(draw, inputs.shape)
            targets = self.augmented(targets[:, None], corners, self.outside)[:, 0]
        return self.scaled(self.augmented(inputs, draw)), targets

    def _unmoved(self, what: str) -> ConfigError:
        return ConfigError(
            f"dataset.{'flip' if self.flip else 'crop'}",
            "true" if self.flip else self.crop,
            f"{what} are not moved",
            "images with classes, labels or masks can be",
            "leave it out",
        )

    def augmented(self, images: Tensor, corners: Tensor | None, outside: int = 0) -> Tensor:
        """[n, c, h, w] to the same, mirrored and cropped: they begin at `corners` in the padded."""
        if corners is None:
            return images
        count, channels, height, width = images.shape
        edge, across = self.crop, width + 2 * self.crop
        size = (1 + self.flip, count, channels, height + 2 * edge, across)  # the mirrored come last
        padded = images.new_full(size, outside)
        inner = padded[..., edge : edge + height, edge : edge + width]
        inner[0] = images
        if self.flip:
            inner[1] = images.flip(3)
        # runs[i] is the view of `width` pixels from the i-th on; a row of a result is one of them.
        runs = padded.as_strided((padded.numel() - width + 1, width), (1, 1))
        rows = row_offsets(channels, height, across, edge, padded.device)
        return runs.index_select(0, (corners[:, None] + rows).flatten()).view(images.shape)

    def scaled(self, images: Tensor) -> Tensor:
        """To float32, resized, in the memory format, normalized."""
        if self.channels is not None and images.shape[1] != self.channels:
            images = images.expand(-1, self.channels, *images.shape[2:])
        if images.ndim == 5 or images.is_floating_point():
            return self._scaled_floats(images)
        size = None if tuple(images.shape[2:]) == (self.size,) * 2 else self.size
        if images.device.type != "cpu":  # where a kernel takes longer to start than to run
            if size is not None:
                floats = images.to(torch.float32, memory_format=self.memory_format)
                images = resized(floats, size).round_()
            return self._in_one_kernel(images)
        images = images.contiguous(memory_format=self.memory_format)
        if size is None and images.numel() <= PIECE:
            return self._normalize(images.to(torch.float32))
        shape = images.shape if size is None else (*images.shape[:2], size, size)
        floats = torch.empty(shape, memory_format=self.memory_format)
        # So few that they are still in the cache when they are normalized.
        count = 8 if size else max(1, PIECE * len(images) // images.numel())
        for some, into in zip(images.split(count), floats.split(count), strict=True):
            self._normalize(into.copy_(some if size is None else resized(some, size)))
        return floats

    def _scaled_floats(self, images: Tensor) -> Tensor:
        """`scaled` for float images, and for volumes, which are not resized."""
        volume = images.ndim == 5
        if not images.is_floating_point():
            images = images.to(torch.float32).div_(torch.iinfo(images.dtype).max)
        if self.size is not None and not volume and tuple(images.shape[2:]) != (self.size,) * 2:
            images = resized(images, self.size)
        layout = self.memory_format
        if volume and layout == torch.channels_last:
            layout = torch.channels_last_3d
        images = images.contiguous(memory_format=layout)
        if self.mean is None or self.std is None:
            return images
        mean, std = (
            per_channel(tuple(values), images.ndim, images.device)
            for values in (self.mean, self.std)
        )
        return (images - mean) / std

    def _in_one_kernel(self, images: Tensor) -> Tensor:
        """Pixels in 0..255, of any dtype, to 0..1 or normalized float32.

        Products need not be rounded before they are added, as they are on a CPU: the last bit of
        a pixel may differ.
        """
        floats = torch.empty(images.shape, device=images.device, memory_format=self.memory_format)
        if (factors := self._factors(floats)) is None:
            return torch.div(images, 255, out=floats)
        return torch.addcmul(factors[1], images, factors[0], out=floats)

    def mask_corners(self, corners: Tensor, shape: tuple[int, ...]) -> Tensor:
        """`corners` of images of this shape as those of their masks, which have one plane."""
        plane = (shape[2] + 2 * self.crop) * (shape[3] + 2 * self.crop)
        image = shape[1] * plane
        return corners // image * plane + corners % image

    def _normalize(self, floats: Tensor) -> Tensor:
        """Pixels in 0..255 to 0..1 or normalized, in place."""
        if (factors := self._factors(floats)) is None:
            return floats.div_(255)
        return floats.mul_(factors[0]).add_(factors[1])

    def _factors(self, floats: Tensor) -> tuple[Tensor, Tensor] | None:
        """What pixels in 0..255 are multiplied by, and what is added then; None: divide by 255."""
        if self.mean is None or self.std is None:
            return None
        mean, std, width = tuple(self.mean), tuple(self.std), floats.shape[3]
        return normalizing(mean, std, floats.shape[1], width, self.memory_format, floats.device)


def is_image(inputs: Tensor) -> bool:
    """Whether these are images [n, c, h, w], bytes or floats, or volumes [n, c, d, h, w]."""
    if inputs.is_floating_point() or inputs.dtype == torch.uint8:
        return inputs.ndim in (4, 5)
    return inputs.ndim == 5 and inputs.dtype == torch.int16


def resized(images: Tensor, size: int) -> Tensor:
    """[n, c, h, w] to [n, c, size, size], of the same dtype and memory format.

    Antialiasing changes nothing but rounding where no side becomes smaller: the weights are the
    same. On CUDA its kernel is the slower one, on a CPU the faster one. A deterministic run takes
    it, as torch then computes the other with many operators.
    """
    smaller, on_cpu = size < max(images.shape[2:]), images.device.type == "cpu"
    antialias = smaller or on_cpu or torch.are_deterministic_algorithms_enabled()
    return F.interpolate(images, size, mode="bilinear", align_corners=False, antialias=antialias)


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


@functools.cache
def per_channel(values: tuple[float, ...], ndim: int, device: torch.device) -> Tensor:
    """A value for each channel of inputs of `ndim` dimensions, on the device once, as above."""
    return torch.tensor(values, device=device).view(-1, *[1] * (ndim - 2))


def to_device(tensor: Tensor, device: torch.device) -> Tensor:
    """`tensor` on `device`, copied without making the host wait."""
    if device.type == "cuda":
        return tensor.pin_memory().to(device, non_blocking=True)
    return tensor if device.type == "cpu" else tensor.to(device)
