"""Images with segmentation masks: a class for each pixel, decoded when they are read."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
from PIL import Image

from ninefold.dataset import Dataset, Examples, Split
from ninefold.dataset.class_numbers import BLACK_AND_WHITE, ClassNumbers, DecodedMasks
from ninefold.dataset.images import (
    FOLDERS,
    OPENED,
    ImageFiles,
    ImageTree,
    bad_image,
    listed,
    read_or,
    require_limit,
    require_shape,
    splits_in,
    spread,
)
from ninefold.errors import ConfigError
from ninefold.progress import bar

if TYPE_CHECKING:  # it imports torch, which the checks before the start do not need
    from ninefold.engine.batches import Preparation

# Folders of images and of their masks, the split in place of {}; the first that is there is taken.
LAYOUTS = (
    ("{}/images", "{}/masks"),
    *(
        (images, masks)
        for images in ("images/{}", "img_dir/{}")
        for masks in ("masks/{}", "labels/{}", "ann_dir/{}")
    ),
    ("{}", "{}annot"),
)
HOLDS = (
    "train/images + train/masks, images/train + masks/train (or img_dir, labels, ann_dir), "
    "or train + trainannot, and the same for test or val"
)
USE_VALUES = "for black and white masks set dataset.values=[0,255]"
LOOKED_AT = 200  # masks of which `prepare` decodes all pixels


@dataclass(frozen=True)
class Masks(Dataset):
    """A semantic segmentation dataset: images, and masks of one channel that hold class numbers.

    An image and its mask have the same name but for `mask_suffix` and the ending. The layout of
    the folders is found, see LAYOUTS. Without a test split, val is the test split. `limit` takes
    training images evenly spaced in the order of their names.

    ignore: the number of pixels that do not count (void); null: all count.
    """

    root: str | None = None
    classes: int = 2
    shape: Sequence[int] = (3, 256, 256)
    ignore: int | None = 255
    values: Sequence[int] | None = None
    class_names: Sequence[str] | None = None
    mask_suffix: str = ""
    flip: bool = True

    @property
    def splits(self) -> tuple[Split, ...]:
        return splits_in(self._folders)

    def prepare(self) -> None:
        """Check the options, every file, the headers of up to OPENED pairs and some masks' values.

        What remains is found when a mask is decoded. Raises DataError, ConfigError.
        """
        self._require_options()
        pairs = [pair for split in self.splits for pair in self._pairs(split)]
        for pair in bar(pairs, "checking the images", unit="pair", delay=1.0):
            for path in pair:
                self._tree.require_readable(path)
        masks = self._masks([])
        for image, mask in bar(spread(pairs, OPENED), "opening images", unit="pair", delay=1.0):
            self._images([]).require_image(image)
            masks.require_fit(mask, image)
        found: Counter[int] = Counter()
        for _, mask in bar(spread(pairs, LOOKED_AT), "looking at masks", unit="mask", delay=1.0):
            found += masks.counts(mask)
        self._require_classes(found, min(len(pairs), LOOKED_AT))

    def load(self, split: Split) -> Examples:
        self._require_options()
        images, masks = zip(*self._read(split), strict=True)
        return Examples(self._images(images), self._masks(masks), tuple(self.class_names or ()))

    def sources(self, split: Split) -> Sequence[str]:
        images, masks = zip(*self._read(split), strict=True)
        return [*images, *masks]

    def preparation(self, **options: Any) -> Preparation:
        """What moves an image and its mask together; pixels outside of a crop are void."""
        return super().preparation(outside=self.ignore or 0, **options)

    @property
    def _tree(self) -> ImageTree:
        return ImageTree(self.root, HOLDS)

    def _images(self, paths: Sequence[str]) -> ImageFiles:
        channels, height, width = self.shape
        return ImageFiles(paths, (channels, height, width), str(self.root))

    def _masks(self, paths: Sequence[str]) -> MaskFiles:
        _, height, width = self.shape
        return MaskFiles(paths, (height, width), self._tree, self._numbers)

    @property
    def _numbers(self) -> ClassNumbers:
        values = None if self.values is None else tuple(self.values)
        return ClassNumbers(self.classes, self.ignore, values)

    def _folders(self, name: str) -> tuple[Path, Path] | None:
        """The folders of the images and masks of a split, if there are such."""
        root = self._tree.path
        layout = layout_of(root)
        if layout is None:
            raise self._tree.wrong(
                "no training images with masks are found",
                self._tree.listing(root),
                self._tree.elsewhere(lambda folder: layout_of(folder) is not None),
            )
        images, masks = (root / part.format(name) for part in layout)
        return (images, masks) if images.is_dir() and masks.is_dir() else None

    def _read(self, split: Split) -> list[tuple[str, str]]:
        return spread(self._pairs(split), self.limit_of(split))

    def _pairs(self, split: Split) -> list[tuple[str, str]]:
        """The paths of the images of a split, in order, each with its mask's. Raises DataError."""
        names = FOLDERS[split]
        both = next((both for name in names if (both := self._folders(name))), None)
        if both is None:
            raise self._tree.wrong(
                f"it holds no {split} images with masks",
                f"looked for {' or '.join(names)} beside train in {self._tree.path}",
                f"it must hold {HOLDS}",
            )
        images, masks = both
        found = self._tree.images(images)
        if not found:
            raise self._tree.wrong(
                f"no images in {images}",
                self._tree.listing(images),
                "put images there; folders below are not read",
            )
        stems = ((stem(path), path) for path in self._tree.images(masks))
        by_stem = self._tree.unique(stems, "mask", "image")
        lacking = [path for path in found if stem(path) + self.mask_suffix not in by_stem]
        if lacking:
            count = f"{len(lacking):,} image{'s have' if len(lacking) > 1 else ' has'} no mask"
            raise self._tree.wrong(
                f"{count}; first {os.path.basename(lacking[0])}",
                f"looked for {stem(lacking[0])}{self.mask_suffix}.png and other endings in "
                f"{masks}, which holds {listed(by_stem)}",
                "add the masks or remove the images, or set dataset.mask_suffix",
            )
        return [(path, by_stem[stem(path) + self.mask_suffix]) for path in found]

    def _require_options(self) -> None:
        """Raise DataError or ConfigError if the options exclude each other."""
        require_shape(self.shape)
        if self.ignore is None and self.crop > 0:
            raise ConfigError(
                "dataset.crop",
                self.crop,
                "pixels outside need a value; a crop moves the mask with its image; ignore=null "
                "leaves it nothing to fill in; set dataset.ignore, or dataset.crop=0",
            )
        for key, given in (("values", self.values), ("class_names", self.class_names)):
            if given is not None and len(given) != self.classes:
                raise ConfigError(
                    f"dataset.{key}",
                    list(given),
                    f"it lists {len(given)}, dataset.classes={self.classes}; one for each class, "
                    f"in their order, is allowed; correct dataset.{key} or dataset.classes",
                )
        self._numbers.require_usable()

    def _require_classes(self, found: Counter[int], count: int) -> None:
        """Raise DataError if masks of the values `found` hold nothing to learn."""
        classes = set(found)
        if self.values is None and classes <= BLACK_AND_WHITE and self.ignore == 255:
            if 255 in classes:
                raise self._tree.wrong(
                    f"{count} masks hold the values {', '.join(map(str, sorted(classes)))} only",
                    "255 is void, as dataset.ignore=255, so that one class is left",
                    USE_VALUES,
                )
        elif self.ignore not in (self.values or ()) and classes == {self.ignore}:
            raise self._tree.wrong(
                f"all pixels of {count} masks are void",
                f"found {self.ignore} only, which is dataset.ignore",
                "correct dataset.ignore, or the masks",
            )


def layout_of(root: Path) -> tuple[str, str] | None:
    """The first of LAYOUTS of which the folders for training are in `root`."""
    for layout in LAYOUTS:
        if all((root / part.format("train")).is_dir() for part in layout):
            return layout
    return None


def stem(path: str) -> str:
    return os.path.splitext(os.path.basename(path))[0]


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
