"""Augmentation of a training recipe, for any dataset: erasing, mixup, cutmix.

All of it is a pure function of (seed, epoch, example) and of the order of the epoch, so that the
number of processes, micro-batches or a restart cannot change what is trained on. Evaluations have
none of it.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from ninefold.dataset.arrays import Rows
from ninefold.dataset.preparation import random_bits, to_device
from ninefold.engine.batches import Preparation
from ninefold.errors import ConfigError
from ninefold.tree import Tree, parts_of

# Streams of random numbers, each independent of the others and of those of flip and crop.
MIXUP, CUTMIX, EITHER, CENTERS, SIZES, PLACES, ERASED = range(1, 8)
AREA, ASPECT = (0.02, 0.33), (0.3, 3.3)  # of an erased rectangle: torchvision's defaults

Floats = npt.NDArray[np.float64]


@dataclass(frozen=True)
class Draw:
    """What is drawn for a batch of n examples; None: not asked for.

    plain: for the preparation within.
    erased, mixed: float32 [n, 4], see `_rectangles` and `_shares`.
    """

    plain: Any
    erased: Tensor | None
    mixed: Tensor | None


@dataclass(frozen=True)
class Augmented:
    """A preparation with random erasing, mixup and cutmix after it.

    erasing: probability that a rectangle of an image is set to 0, the mean of normalized pixels
        (Zhong et al., 2020, "Random erasing data augmentation").
    mixup: alpha of mixup (Zhang et al., 2018, "mixup: Beyond empirical risk minimization"); 0: no
        mixup.
    cutmix: alpha of cutmix (Yun et al., 2019, "CutMix: Regularization strategy to train strong
        classifiers with localizable features"); 0: none. With both, each example gets one of them,
        by the toss of a coin.
    classes: how many there are: mixed targets are shares of classes, or of labels, float32
        [n, classes].

    An example at place i of the global batch of B is mixed with the one at (i + B/2) mod B, in a
    share drawn from Beta(alpha, alpha) for the example alone. As a process takes every k-th
    example, both are in the same process wherever B divides by 2k: so nothing is read twice, and
    every strategy mixes the same pairs. The order of an epoch is random, and so are its pairs.
    """

    plain: Preparation
    erasing: float = 0
    mixup: float = 0
    cutmix: float = 0
    classes: int | None = None

    def draws(
        self, seed: int, epoch: int, rows: Rows, shape: tuple[int, ...], device: torch.device
    ) -> Iterator[Draw]:
        plain = self.plain.draws(seed, epoch, rows, shape, device)
        erased = mixed = None
        if self.erasing:
            erased = on_device(self._rectangles(seed, epoch, rows), device)
        if self.mixup or self.cutmix:
            mixed = on_device(self._shares(seed, epoch, rows), device)
        for number, inner in zip(range(len(rows)), plain, strict=False):  # some never end
            yield Draw(
                inner,
                None if erased is None else erased[number],
                None if mixed is None else mixed[number],
            )

    def __call__(self, inputs: Tree, targets: Tree, draw: Draw) -> tuple[Tree, Tree]:
        """To inputs of the same shape and, if they are mixed, targets float32 [n, classes].

        Raises ConfigError for inputs or targets that an augmentation that is on cannot handle.
        """
        inputs, targets = self.plain(inputs, targets, draw.plain)
        if draw.erased is not None:
            self._require_images("erasing", self.erasing, inputs)
            inputs = inputs.masked_fill(within(inputs, *edges(inputs, draw.erased)), 0)
        if draw.mixed is not None:
            inputs, targets = self._mixed(inputs, targets, draw.mixed)
        return inputs, targets

    def _rectangles(self, seed: int, epoch: int, rows: Rows) -> Floats:
        """Center and sides of what is erased of each example, as shares of the image's sides."""
        area, aspect = uniform(random_bits(seed, epoch, rows, SIZES))
        across, down = uniform(random_bits(seed, epoch, rows, PLACES))
        area = AREA[0] + area * (AREA[1] - AREA[0])
        aspect = np.exp(np.log(ASPECT[0]) + aspect * np.log(ASPECT[1] / ASPECT[0]))
        height = np.minimum(np.sqrt(area * aspect), 1)
        width = np.minimum(np.sqrt(area / aspect), 1)
        erases = uniform(random_bits(seed, epoch, rows, ERASED))[0] < self.erasing
        # Within the image; where nothing is erased its sides are 0.
        return np.stack(
            [
                height / 2 + down * (1 - height),
                width / 2 + across * (1 - width),
                height * erases,
                width * erases,
            ],
            axis=-1,
        )

    def _shares(self, seed: int, epoch: int, rows: Rows) -> Floats:
        """Of each example the share that stays in mixup, and center and side of cutmix's rectangle.

        The share is 1 where it gets cutmix, the side 0 where it gets mixup.
        """
        share = beta(self.mixup, seed, epoch, rows, MIXUP)
        side = np.sqrt(1 - beta(self.cutmix, seed, epoch, rows, CUTMIX))
        if self.mixup and self.cutmix:
            cuts = uniform(random_bits(seed, epoch, rows, EITHER))[0] < 0.5
            share, side = np.where(cuts, 1, share), np.where(cuts, side, 0)
        down, across = uniform(random_bits(seed, epoch, rows, CENTERS))
        return np.stack([share, down, across, side], axis=-1)

    def _mixed(self, inputs: Tree, targets: Tree, draw: Tensor) -> tuple[Tensor, Tensor]:
        key, value = ("mixup", self.mixup) if self.mixup else ("cutmix", self.cutmix)
        shares = self._shares_of(targets)
        if shares is None:
            raise wrong(
                key,
                value,
                f"the targets are {described(targets)}",
                "classes [n], whose number is known, and labels [n, classes] can be mixed",
            )
        if not isinstance(inputs, Tensor) or not inputs.is_floating_point():
            raise wrong(key, value, f"the inputs are {described(inputs)}", "floats can be mixed")
        half = len(inputs) // 2
        assert 2 * half == len(inputs), "refused before"
        other = torch.cat([inputs[half:], inputs[:half]])
        share = draw[:, 0]
        if self.mixup:  # rounded after each product, on every device and in every layout
            weights = share.view(-1, *[1] * (inputs.ndim - 1))
            mixed = (inputs * weights).add_(other * (1 - weights))
        else:
            mixed = inputs
        if self.cutmix:
            self._require_images("cutmix", self.cutmix, inputs)
            box = edges(inputs, draw[:, [1, 2, 3, 3]])
            mixed = torch.where(within(inputs, *box), other, mixed)
            top, bottom, left, right = box
            share = share - (bottom - top) * (right - left) / (inputs.shape[2] * inputs.shape[3])
        others = torch.cat([shares[half:], shares[:half]])
        return mixed, shares * share[:, None] + others * (1 - share)[:, None]

    def _shares_of(self, targets: Tree) -> Tensor | None:
        """Classes [n] or labels [n, classes] as float32 [n, classes]; None: they are neither."""
        if not isinstance(targets, Tensor):
            return None
        if targets.ndim == 2 and targets.shape[1] == self.classes:
            return targets.to(torch.float32)
        if targets.ndim != 1 or targets.is_floating_point() or self.classes is None:
            return None
        classes = torch.arange(self.classes, device=targets.device)
        return (targets[:, None] == classes).to(torch.float32)

    def _require_images(self, key: str, value: float, inputs: Tree) -> None:
        if not isinstance(inputs, Tensor) or inputs.ndim != 4:
            raise wrong(key, value, f"the inputs are {described(inputs)}", "images are allowed")


def described(values: Tree) -> str:
    """The dtype of a batch and the shape of one of it, such as `uint8 [3, 32, 32]`."""
    if not isinstance(values, Tensor):
        return parts_of(values)
    return f"{str(values.dtype).removeprefix('torch.')} {list(values.shape[1:])}"


def wrong(key: str, value: object, found: str, allowed: str) -> ConfigError:
    """The failure for a dataset that augment.KEY cannot handle."""
    do = f"leave augment.{key} out, or choose another dataset or task"
    return ConfigError(f"augment.{key}", value, found, allowed, do)


def on_device(values: Floats, device: torch.device) -> Tensor:
    return to_device(torch.from_numpy(values.astype(np.float32)), device)


def uniform(bits: npt.NDArray[np.uint64]) -> tuple[Floats, Floats]:
    """Two independent numbers in [0, 1) from each 64 random bits."""
    high, low = bits >> np.uint64(32), bits & np.uint64(0xFFFFFFFF)
    return high.astype(np.float64) / 2**32, low.astype(np.float64) / 2**32


def beta(alpha: float, seed: int, epoch: int, rows: Rows, stream: int) -> Floats:
    """A draw from Beta(alpha, alpha) for each example; 1 for alpha 0.

    The numbers of an epoch are drawn one after another, one for each example by its number, so
    that it is the same for whoever asks.
    """
    if not alpha:
        return np.ones(rows.shape)
    random = np.random.default_rng(np.random.SeedSequence([seed, epoch], spawn_key=(stream,)))
    found: Floats = random.beta(alpha, alpha, int(rows.max(initial=-1)) + 1)[rows]
    return found


def edges(images: Tensor, draw: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Rows and columns, top, bottom, left and right, of rectangles: each float32 [n], whole.

    draw: center and sides as shares of the image's, float32 [n, 4]. What is outside is cut off.
    """
    down, across, height, width = draw.unbind(1)
    found = []
    for center, side, pixels in (
        (down, height, images.shape[2]),
        (across, width, images.shape[3]),
    ):
        size = (side * pixels).round()
        first = (center * pixels - size / 2).round()
        found += [first.clamp(0, pixels), (first + size).clamp(0, pixels)]
    top, bottom, left, right = found
    return top, bottom, left, right


def within(images: Tensor, top: Tensor, bottom: Tensor, left: Tensor, right: Tensor) -> Tensor:
    """Whether a pixel is in the rectangle of its image: bool [n, 1, h, w]."""
    rows = torch.arange(images.shape[2], device=images.device)
    columns = torch.arange(images.shape[3], device=images.device)
    down = (rows >= top[:, None]) & (rows < bottom[:, None])
    across = (columns >= left[:, None]) & (columns < right[:, None])
    return down[:, None, :, None] & across[:, None, None, :]
