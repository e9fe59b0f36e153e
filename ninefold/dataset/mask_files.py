"""Files of masks: class numbers, read as they are stored and cut as their images are."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt
from PIL import Image

from ninefold.dataset.class_numbers import DecodedMasks
from ninefold.dataset.images import bad_image, read_or, require_limit

USE_VALUES = "for black and white masks set dataset.values=[0,255]"


@dataclass(frozen=True)
class MaskFiles(DecodedMasks):
    """Masks in files, decoded to class numbers [n, height, width].

    Each is center-cropped to the proportions of `size` and resized to it by taking the nearest
    pixel: the cut that `pixels` makes of its image.
    """

    size: tuple[int, int]

    def require_fit(self, path: str, image: str) -> None:
        """Raise DataError unless the header of a mask is that of a mask of `image`."""
        with Image.open(image) as opened:
            wanted = opened.size
        found = self._stored(path, decode=False).shape[::-1]
        if found != wanted:
            raise self.tree.wrong(
                f"{image} is {wanted[0]}x{wanted[1]}, its mask {found[0]}x{found[1]}",
                f"{path} must have a pixel for each of the image's",
                "replace one of them",
            )

    def counts(self, path: str) -> Counter[int]:
        """How many pixels of a mask have each value; DataError if one of them is not allowed."""
        stored = self._stored(path)
        self._require_allowed(path, stored)
        values, counts = np.unique(stored, return_counts=True)
        return Counter(dict(zip(values.tolist(), counts.tolist(), strict=True)))

    def decoded(self, path: str) -> npt.NDArray[np.int16]:
        stored = self._stored(path)
        numbers = self.numbers.of(nearest(stored, *self.size))
        if numbers.min() < 0:
            self._require_allowed(path, stored)
        return numbers

    def _require_allowed(self, path: str, stored: npt.NDArray[Any]) -> None:
        if self.numbers.of(stored).min() < 0:
            raise self.tree.wrong(*self.numbers.mistake(path, stored, "pixels", USE_VALUES))

    def _stored(self, path: str, decode: bool = True) -> npt.NDArray[Any]:
        """A mask's pixels as they are stored [height, width]; without `decode` only their shape."""
        with read_or(partial(bad_image, str(self.tree.root), path), path), Image.open(path) as mask:
            require_limit(mask)
            kind, mode = mask.format, mask.mode
            if decode:
                stored = np.asarray(mask)
            else:
                stored = np.broadcast_to(np.uint8(), (mask.height, mask.width))
        if mode not in ("1", "L", "P") and not mode.startswith("I"):
            raise self.tree.wrong(
                f"mask {path} is {mode}",
                "one channel of class numbers is allowed",
                "save its class numbers as gray levels or with a palette",
            )
        if kind == "JPEG":
            raise self.tree.wrong(
                f"mask {path} is a JPEG, which changes class numbers",
                "formats without loss are allowed",
                "save the masks as PNG",
            )
        return stored.astype(np.uint8) if stored.dtype == np.bool_ else stored


def nearest(pixels: npt.NDArray[Any], height: int, width: int) -> npt.NDArray[Any]:
    """[h, w], cropped around the middle to the proportions of the result, to [height, width]."""
    tall, wide = pixels.shape
    if (tall, wide) == (height, width):
        return pixels
    across, down = min(wide, width / height * tall), min(tall, wide / (width / height))
    columns = (wide - across) / 2 + (np.arange(width) + 0.5) * across / width
    rows = (tall - down) / 2 + (np.arange(height) + 0.5) * down / height
    return pixels[np.ix_(rows.astype(np.int64), columns.astype(np.int64))]
