"""Images with segmentation masks: a class for each pixel, decoded when they are read."""

from __future__ import annotations

import functools
import os
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from PIL import Image

from ninefold.dataset import Dataset, Examples, Split
from ninefold.dataset.arrays import FileArray
from ninefold.dataset.images import (
    FOLDERS,
    OPENED,
    ImageFiles,
    ImageTree,
    require_limit,
    require_shape,
    splits_in,
    spread,
)
from ninefold.errors import ConfigError
from ninefold.numbers import counted, plural
from ninefold.progress import bar

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
LOOKED_AT = 200  # masks of which `prepare` decodes all pixels
VALUES = 2**16  # gray levels of a mask of 16 bits
MAX_CLASSES = 2**15 - 1  # of int16
BLACK_AND_WHITE = "divide black and white masks by 255 (dataset=masks: set dataset.values=[0,255])"


def require_classes(count: int | None) -> None:
    """Raise ConfigError where masks have no number of classes, which they do not say themselves."""
    if count is None:
        wrong = "masks do not say how many there are"
        allowed = "a whole number of at least 1 is allowed"
        raise ConfigError("dataset.classes", "null", wrong, allowed, "set dataset.classes")


@dataclass(frozen=True)
class ClassNumbers:
    """`classes` classes, and void (pixels that do not count) as the number `ignore`, if any.

    values: what stands for each class in a mask; None: its number.
    """

    classes: int
    ignore: int | None
    values: tuple[int, ...] | None = None

    @property
    def dtype(self) -> type[np.uint8] | type[np.int16]:
        """Of masks: int16 where classes or `ignore` are above 255."""
        return np.uint8 if self.classes <= 255 and (self.ignore or 0) <= 255 else np.int16

    def of(self, stored: npt.NDArray[Any]) -> npt.NDArray[np.int16]:
        """The class of each of these integers, or `ignore`; -1 for values that are not allowed."""
        if stored.dtype != np.uint8:
            known = (stored >= 0) & (stored < VALUES)
            stored = np.where(known, stored, 0).astype(np.int32)  # VALUES is more than int16 holds
            stored[~known] = VALUES
        return np.asarray(table(self.classes, self.ignore, self.values)[stored], np.int16)

    def mistake(self, name: str, stored: npt.NDArray[Any], unit: str) -> tuple[str, str, str]:
        """What is wrong with the mask `name`, which holds values that are not allowed, what is
        allowed, and what to do. unit: what there is a value for, pixel or voxel.
        """
        wrong = stored[self.of(stored) < 0]
        value, count = Counter(wrong.tolist()).most_common(1)[0]
        allowed = f"0 to {self.classes - 1}" if self.values is None else f"{list(self.values)}"
        and_void = "" if self.ignore is None else f" and ignore={self.ignore}"
        do = "correct dataset.values"
        if self.values is None:
            do = f"set dataset.classes={int(wrong.max()) + 1}"
            if set(np.unique(stored).tolist()) <= {0, 255}:
                do = BLACK_AND_WHITE
        if not 0 <= value < MAX_CLASSES:
            do = "correct the mask"
        elif self.values is None or value >= self.classes:
            do += f" or dataset.ignore={value}"
        return (
            f"mask {name} has the value {value} in {count:,} {plural(count, unit)}",
            f"{allowed}{and_void} are allowed",
            do,
        )

    def nothing_to_learn(self, found: set[int], count: int) -> tuple[str, str, str] | None:
        """What is wrong with `count` masks that hold these values: all void, or one class beside.

        That is of 0 and 255 where 255 is void: masks in black and white.
        """
        if self.ignore not in found or self.ignore in (self.values or ()):
            return None
        if not found <= ({0, 255} if self.ignore == 255 else {self.ignore}):
            return None
        masks, values = counted(count, "mask"), ", ".join(map(str, sorted(found)))
        return (
            f"{masks} {plural(count, 'holds', 'hold')} the values {values} only",
            f"{self.ignore} is ignored (dataset.ignore), so that at most one class is left",
            f"{BLACK_AND_WHITE}, or correct dataset.ignore",
        )

    def require_usable(self) -> None:
        """Raise ConfigError if there are too many classes, or void is one of them by mistake."""
        if self.classes > MAX_CLASSES:
            wrong = "masks hold numbers of 16 bits"
            allowed = f"{MAX_CLASSES} classes at most are allowed"
            do = "lower dataset.classes"
            raise ConfigError("dataset.classes", self.classes, wrong, allowed, do)
        # Otherwise a class may be void on purpose, as the 0 of masks that count from 1.
        chosen = self.values is None and self.ignore != 255
        if self.ignore is not None and self.ignore < self.classes and not chosen:
            wrong = f"it is also one of {self.classes} classes"
            allowed = f"a number from {self.classes} to {MAX_CLASSES}, or null, is allowed"
            do = f"set dataset.ignore={self.classes} or dataset.ignore=null"
            raise ConfigError("dataset.ignore", self.ignore, wrong, allowed, do)


@functools.lru_cache(maxsize=8)
def table(classes: int, ignore: int | None, values: tuple[int, ...] | None) -> npt.NDArray[Any]:
    """The class of each value, `ignore` of void and -1 of all others: int16 [VALUES + 1]."""
    found = np.full(VALUES + 1, -1, np.int16)
    if ignore is not None:
        found[ignore] = ignore
    found[np.arange(classes) if values is None else list(values)] = np.arange(classes)
    return found


@dataclass(frozen=True)
class MaskArray(FileArray):
    """Masks in files, decoded to class numbers [n, *size] when they are read."""

    paths: Sequence[Any]
    size: tuple[int, ...]
    tree: ImageTree
    numbers: ClassNumbers

    @property
    def dtype(self) -> npt.DTypeLike:
        return self.numbers.dtype

    def classes_of(self, path: str, stored: npt.NDArray[Any], unit: str) -> npt.NDArray[np.int16]:
        """The class numbers of a mask with these values. Raises DataError if one is not allowed."""
        numbers = self.numbers.of(stored)
        if numbers.min() < 0:
            raise self.tree.wrong(*self.numbers.mistake(path, stored, unit))
        return numbers


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
        self._tree.require_readable([path for pair in pairs for path in pair])
        masks = self._masks([])
        for image, mask in bar(spread(pairs, OPENED), "opening images", unit="pair", delay=1.0):
            self._images([]).decoded(image, decode=False)
            masks.stored(image, mask, decode=False)
        found: set[int] = set()
        for pair in bar(spread(pairs, LOOKED_AT), "looking at masks", unit="mask", delay=1.0):
            found |= masks.values(pair)
        if wrong := self._numbers.nothing_to_learn(found, min(len(pairs), LOOKED_AT)):
            raise self._tree.wrong(*wrong)

    def load(self, split: Split) -> Examples:
        self._require_options()
        pairs = self._read(split)
        images = self._images([image for image, _ in pairs])
        return Examples(images, self._masks(pairs), tuple(self.class_names or ()))

    def sources(self, split: Split) -> Sequence[str]:
        images, masks = zip(*self._read(split), strict=True)
        return [*images, *masks]

    @property
    def _tree(self) -> ImageTree:
        return ImageTree(self.root, HOLDS)

    def _images(self, paths: Sequence[str]) -> ImageFiles:
        return ImageFiles(paths, tuple(self.shape), self._tree)

    def _masks(self, pairs: Sequence[tuple[str, str]]) -> MaskFiles:
        return MaskFiles(pairs, tuple(self.shape[1:]), self._tree, self._numbers)

    @property
    def _numbers(self) -> ClassNumbers:
        require_classes(self.classes)
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
        wanted = FOLDERS[split]
        both = next((both for name in wanted if (both := self._folders(name))), None)
        if both is None:
            raise self._tree.wrong(
                f"it holds no {split} images with masks",
                f"looked for {' or '.join(wanted)} next to train in {self._tree.path}",
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
        names = [stem(path) + self.mask_suffix for path in found]
        do = "add the masks or remove the images, or set dataset.mask_suffix"
        stems = ((stem(path), path) for path in self._tree.images(masks))
        return list(zip(found, self._tree.masks_of(names, stems, masks, "image", do), strict=True))

    def _require_options(self) -> None:
        """Raise DataError or ConfigError if the options exclude each other."""
        require_shape(self.shape)
        require_void(self.crop, self.ignore)
        for key, given in (("values", self.values), ("class_names", self.class_names)):
            if given is not None and len(given) != self.classes:
                wrong = f"it lists {len(given)}, dataset.classes={self.classes}"
                allowed = "one for each class, in their order, is allowed"
                do = f"correct dataset.{key} or dataset.classes"
                raise ConfigError(f"dataset.{key}", list(given), wrong, allowed, do)
        self._numbers.require_usable()


def require_void(crop: int, ignore: int | None) -> None:
    """Raise ConfigError for a crop of masks in which no number stands for pixels outside."""
    if ignore is None and crop > 0:
        wrong = "pixels outside need a value; a crop moves the mask with its image"
        allowed = "ignore=null leaves it nothing to fill in"
        do = "set dataset.ignore, or dataset.crop=0"
        raise ConfigError("dataset.crop", crop, wrong, allowed, do)


def layout_of(root: Path) -> tuple[str, str] | None:
    """The first of LAYOUTS of which the folders for training are in `root`."""
    for layout in LAYOUTS:
        if all((root / part.format("train")).is_dir() for part in layout):
            return layout
    return None


@functools.cache  # else each epoch would open the image once more
def size_of(image: str) -> tuple[int, int]:
    """Width and height of an image, as its header says."""
    with Image.open(image) as opened:
        return opened.size


def stem(path: str) -> str:
    return os.path.splitext(os.path.basename(path))[0]


@dataclass(frozen=True)
class MaskFiles(MaskArray):
    """Masks in files, decoded to class numbers [n, height, width].

    Each is center-cropped to the proportions of `size` and resized to it by taking the nearest
    pixel: the cut that `pixels` makes of its image.

    paths: of each image and its mask.
    """

    paths: Sequence[tuple[str, str]]

    def values(self, pair: tuple[str, str]) -> set[int]:
        """The values in a mask. Raises DataError if one of them is not allowed."""
        stored = self.stored(*pair)
        self.classes_of(pair[1], stored, "pixel")
        return set(np.unique(stored).tolist())

    def decoded(self, path: tuple[str, str]) -> npt.NDArray[np.int16]:
        return self.classes_of(path[1], nearest(self.stored(*path), *self.size), "pixel")

    def stored(self, image: str, path: str, decode: bool = True) -> npt.NDArray[Any]:
        """The pixels of the mask in `path` as they are stored [height, width]; without `decode`
        only their shape. Raises DataError unless it is a mask of `image`.
        """
        with self.tree.reading(image):
            wide, tall = size_of(image)
        with self.tree.reading(path), Image.open(path) as mask:
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
        if stored.shape != (tall, wide):
            raise self.tree.wrong(
                f"{image} is {wide}x{tall}, its mask {stored.shape[1]}x{stored.shape[0]}",
                f"{path} must have a pixel for each of the image's",
                "replace one of them",
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
