"""Images of overlapping shapes, drawn at random: several labels an image, or several masks."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from ninefold.dataset import Dataset, Examples, Split
from ninefold.errors import DataError

Offsets = npt.NDArray[np.float64]
# Which pixels a shape covers, by their distances from its center down and across, in its radius.
SHAPES: dict[str, Callable[[Offsets, Offsets], npt.NDArray[np.bool_]]] = {
    "disc": lambda y, x: y**2 + x**2 <= 1,
    "ring": lambda y, x: (y**2 + x**2 <= 1) & (y**2 + x**2 >= 0.35),
    "square": lambda y, x: np.maximum(abs(y), abs(x)) <= 0.85,
    "cross": lambda y, x: (np.minimum(abs(y), abs(x)) <= 0.25) & (np.maximum(abs(y), abs(x)) <= 1),
    "bars": lambda y, x: (abs(abs(y) - 0.7) <= 0.25) & (abs(x) <= 1),
}


@dataclass(frozen=True)
class Shapes(Dataset):
    """Gray images uint8 [1, h, w] of up to five shapes over each other, the same in every run.

    Targets are 1 for each shape that is there, else 0, float32 [5]; with `masks` for each pixel
    that it covers, float32 [5, h, w].
    """

    masks: bool = False
    train_count: int = 4096
    test_count: int = 512
    classes: int = len(SHAPES)
    shape: Sequence[int] = (1, 16, 16)

    def load(self, split: Split) -> Examples:
        if len(self.shape) != 3 or self.shape[0] != 1 or min(self.shape[1:]) < 8:
            wrong = "the images of shapes are gray"
            allowed = "[1, height, width] with at least 8 pixels a side is allowed"
            raise DataError("dataset.shape", list(self.shape), wrong, allowed, "correct it")
        count = self.train_count if split == "train" else self.test_count
        images, masks = drawn(count, self.shape[1:], seed=0 if split == "train" else 1)
        targets = masks if self.masks else masks.any(axis=(2, 3))
        return Examples(images, np.asarray(targets, np.float32), list(SHAPES)).first(
            self.limit_of(split)
        )


def drawn(
    count: int, sides: Sequence[int], seed: int
) -> tuple[npt.NDArray[np.uint8], npt.NDArray[np.bool_]]:
    """Images uint8 [count, 1, h, w] in noise, and the mask of each shape [count, 5, h, w]."""
    random = np.random.default_rng(seed)
    there = random.random((count, len(SHAPES))) < 0.4
    radii = random.uniform(0.2, 0.35, there.shape) * min(sides)
    centers = random.uniform(0.25, 0.75, (2, *there.shape))
    places = [np.arange(side) for side in sides]
    y, x = (
        (place - side * center[..., None]) / radii[..., None]
        for place, side, center in zip(places, sides, centers, strict=True)
    )
    masks = np.stack(
        [
            covers(y[:, number, :, None], x[:, number, None, :])
            for number, covers in enumerate(SHAPES.values())
        ],
        axis=1,
    )
    masks &= there[..., None, None]
    light = random.uniform(25, 55, there.shape)[..., None, None]
    images = (masks * light).sum(axis=1) + random.normal(30, 12, (count, *sides))
    return images.clip(0, 255).astype(np.uint8)[:, None], masks
