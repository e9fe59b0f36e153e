"""Images with segmentation masks: a class for each pixel, decoded when they are read."""

from __future__ import annotations

import functools
import os
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, overload

import numpy as np
import numpy.typing as npt
from PIL import Image

from ninefold.dataset import Array, Examples, Rows, Split
from ninefold.dataset.folder import FOLDERS, Files
from ninefold.dataset.images import OPENED, Tree, bad_image, listed, require_shape, spread
from ninefold.errors import ConfigError, DataError
from ninefold.progress import bar

if TYPE_CHECKING:  # it imports torch, which the checks before the start do not need
    from ninefold.dataset.preparation import ImagePreparation

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
BLACK_AND_WHITE = {0, 255}
GRAYS = 2**16  # gray levels of a mask of 16 bits
MOST = 2**15 - 1  # of int16


@dataclass(frozen=True)
class Masks:
    """A semantic segmentation dataset: images, and masks of one channel that hold class numbers.

    An image and its mask have the same name but for `mask_suffix` and the ending. The layout of
    the folders is found, see LAYOUTS. Without a test split, val is the test split. `limit` takes
    training images evenly spaced in the order of their names.

    ignore: the number of pixels that do not count (void); null: all count.
    values: the gray level or palette index of each class; null: they are the class numbers.
    """

    root: str | None
    limit: int | None = None
    classes: int = 2
    shape: Sequence[int] = (3, 256, 256)
    ignore: int | None = 255
    values: Sequence[int] | None = None
    class_names: Sequence[str] | None = None
    mask_suffix: str = ""
    mean: Sequence[float] | None = None
    std: Sequence[float] | None = None
    flip: bool = True
    crop: int = 0
    val: float = 0
    cache: str | None = None
    cache_rate: float = 1.0
    cache_dir: str = "~/.cache/ninefold"

    @property
    def splits(self) -> tuple[Split, ...]:
        both = all(self._folders(name) for name in ("val", "test"))
        return ("train", "val", "test") if both else ("train", "test")

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
            self._files([]).require_image(image)
            masks.require_fit(mask, image)
        found: Counter[int] = Counter()
        for _, mask in bar(spread(pairs, LOOKED_AT), "looking at masks", unit="mask", delay=1.0):
            found += masks.counts(mask)
        self._require_classes(found, min(len(pairs), LOOKED_AT))

    def load(self, split: Split) -> Examples:
        self._require_options()
        images, masks = zip(*self._read(split), strict=True)
        return Examples(self._files(images), self._masks(masks), tuple(self.class_names or ()))

    def sources(self, split: Split) -> Sequence[str]:
        """The paths of all files that `load(split)` reads examples from: images, then masks."""
        images, masks = zip(*self._read(split), strict=True)
        return [*images, *masks]

    def preparation(self, **options: Any) -> ImagePreparation:
        """What moves an image and its mask together; pixels outside of a crop are void."""
        from ninefold.dataset.preparation import ImagePreparation

        return ImagePreparation(outside=self.ignore or 0, **options)

    @property
    def _tree(self) -> Tree:
        return Tree(self.root, HOLDS)

    def _files(self, paths: Sequence[str]) -> Files:
        channels, height, width = self.shape
        return Files(paths, (channels, height, width), str(self.root))

    def _masks(self, paths: Sequence[str]) -> MaskFiles:
        _, height, width = self.shape
        values = None if self.values is None else tuple(self.values)
        return MaskFiles(paths, (height, width), str(self.root), self.classes, self.ignore, values)

    def _folders(self, name: str) -> tuple[Path, Path] | None:
        """The folders of the images and masks of a split, if there are such."""
        root = self._tree.path
        for images, masks in LAYOUTS:
            if (root / images.format("train")).is_dir() and (root / masks.format("train")).is_dir():
                pair = root / images.format(name), root / masks.format(name)
                return pair if all(folder.is_dir() for folder in pair) else None
        raise self._tree.wrong(
            "no training images with masks are found",
            f"found {listed(entry.name for entry in self._tree.entries(root))}",
            f"it must hold {HOLDS}",
        )

    def _read(self, split: Split) -> list[tuple[str, str]]:
        pairs = self._pairs(split)
        return pairs if split != "train" or self.limit is None else spread(pairs, self.limit)

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
                f"found {listed(entry.name for entry in self._tree.entries(images))}",
                "put images there; folders below are not read",
            )
        by_stem: dict[str, str] = {}
        for path in self._tree.images(masks):
            other = by_stem.setdefault(stem(path), path)
            if other != path:
                raise self._tree.wrong(
                    f"{other} and {path} are masks of one image",
                    "one mask for each image is allowed",
                    "remove one of them",
                )
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
                "pixels outside need a value",
                "a crop moves the mask with its image; ignore=null leaves it nothing to fill in",
                "set dataset.ignore, or dataset.crop=0",
            )
        for key, given in (("values", self.values), ("class_names", self.class_names)):
            if given is not None and len(given) != self.classes:
                raise ConfigError(
                    f"dataset.{key}",
                    list(given),
                    f"it lists {len(given)}, dataset.classes={self.classes}",
                    "one for each class, in their order, is allowed",
                    f"correct dataset.{key} or dataset.classes",
                )
        if self.classes > MOST:
            raise ConfigError(
                "dataset.classes",
                self.classes,
                "masks hold numbers of 16 bits",
                f"{MOST} classes at most are allowed",
                "lower dataset.classes",
            )
        # Otherwise a class may be void on purpose, as the 0 of masks that count from 1.
        chosen = self.values is None and self.ignore != 255
        if self.ignore is not None and self.ignore < self.classes and not chosen:
            raise ConfigError(
                "dataset.ignore",
                self.ignore,
                f"it is also one of {self.classes} classes",
                f"a number from {self.classes} to {MOST}, or null, is allowed",
                f"set dataset.ignore={self.classes} or dataset.ignore=null",
            )

    def _require_classes(self, found: Counter[int], count: int) -> None:
        """Raise DataError if masks of the values `found` hold nothing to learn."""
        classes = set(found)
        if self.values is None and classes <= BLACK_AND_WHITE and self.ignore == 255:
            if 255 in classes:
                raise self._tree.wrong(
                    f"{count} masks hold the values {', '.join(map(str, sorted(classes)))} only",
                    "255 is void, as dataset.ignore=255, so that one class is left",
                    "for black and white masks set dataset.values=[0,255]",
                )
        elif self.ignore not in (self.values or ()) and classes == {self.ignore}:
            raise self._tree.wrong(
                f"all pixels of {count} masks are void",
                f"found {self.ignore} only, which is dataset.ignore",
                "correct dataset.ignore, or the masks",
            )


@dataclass(frozen=True)
class MaskFiles:
    """Masks in files, decoded to class numbers [n, height, width] when they are indexed.

    uint8, or int16 where classes or `ignore` are above 255. Each is center-cropped to the
    proportions of `size` and resized to it by taking the nearest pixel: the cut that `Files` makes
    of its image.
    """

    paths: Sequence[str]
    size: tuple[int, int]
    root: str
    classes: int
    ignore: int | None
    values: tuple[int, ...] | None

    @property
    def shape(self) -> tuple[int, ...]:
        return (len(self.paths), *self.size)

    def __len__(self) -> int:
        return len(self.paths)

    @overload
    def __getitem__(self, rows: Rows, /) -> npt.NDArray[Any]: ...
    @overload
    def __getitem__(self, rows: slice, /) -> Array: ...
    def __getitem__(self, rows: Rows | slice, /) -> npt.NDArray[Any] | Array:
        """Raises DataError with the name of a mask that cannot be used."""
        if isinstance(rows, slice):
            return MaskFiles(
                self.paths[rows], self.size, self.root, self.classes, self.ignore, self.values
            )
        small = self.classes <= 255 and (self.ignore or 0) <= 255
        masks = np.empty((len(rows), *self.size), np.uint8 if small else np.int16)
        for mask, row in zip(masks, rows.tolist(), strict=True):
            mask[:] = self._decoded(self.paths[row])
        return masks

    def require_fit(self, path: str, image: str) -> None:
        """Raise DataError unless the header of a mask is that of a mask of `image`."""
        with Image.open(image) as opened:
            wanted = opened.size
        found = self._read(path, decode=False).shape[::-1]
        if found != wanted:
            raise self._wrong(
                f"{image} is {wanted[0]}x{wanted[1]}, its mask {found[0]}x{found[1]}",
                f"{path} must have a pixel for each of the image's",
                "replace one of them",
            )

    def counts(self, path: str) -> Counter[int]:
        """How many pixels of a mask have each value; DataError if one of them is not allowed."""
        pixels = self._read(path)
        self._require_classes(path, pixels)
        values, counts = np.unique(pixels, return_counts=True)
        return Counter(dict(zip(values.tolist(), counts.tolist(), strict=True)))

    def _decoded(self, path: str) -> npt.NDArray[np.int16]:
        pixels = self._read(path)
        numbers = self._numbers(nearest(pixels, *self.size))
        if numbers.min() < 0:
            self._require_classes(path, pixels)
        return numbers

    def _numbers(self, pixels: npt.NDArray[Any]) -> npt.NDArray[np.int16]:
        """The class of each pixel, or `ignore`; -1 for values that are not allowed."""
        if pixels.dtype != np.uint8:  # numbers of 16 bits may come as int32
            pixels = np.where((pixels >= 0) & (pixels < GRAYS), pixels, GRAYS)
        table = class_numbers(self.classes, self.ignore, self.values)
        return np.asarray(table[pixels], np.int16)

    def _require_classes(self, path: str, pixels: npt.NDArray[Any]) -> None:
        """Raise DataError if values of `pixels`, a whole mask, are not allowed."""
        wrong = pixels[self._numbers(pixels) < 0]
        if not wrong.size:
            return
        value, count = Counter(wrong.tolist()).most_common(1)[0]
        and_void = "" if self.ignore is None else f" and ignore={self.ignore}"
        if self.values is not None:
            allowed, do = f"dataset.values={list(self.values)}", "correct dataset.values"
        else:
            allowed = f"0 to {self.classes - 1}"
            do = f"set dataset.classes={int(wrong.max()) + 1}"
            if set(np.unique(pixels).tolist()) <= BLACK_AND_WHITE:
                do = "for black and white masks set dataset.values=[0,255]"
        raise self._wrong(
            f"mask {path} has the value {value} in {count:,} pixels",
            f"{allowed}{and_void} are allowed",
            f"{do} or dataset.ignore={value}",
        )

    def _read(self, path: str, decode: bool = True) -> npt.NDArray[Any]:
        """A mask's pixels as they are stored [height, width]; without `decode` only their shape."""
        try:
            with Image.open(path) as mask:
                pixels, most = mask.width * mask.height, Image.MAX_IMAGE_PIXELS
                if most is not None and pixels > most:
                    raise ValueError(f"Image size ({pixels} pixels) exceeds limit of {most} pixels")
                kind, mode = mask.format, mask.mode
                if not decode:
                    stored = np.broadcast_to(np.uint8(), (mask.height, mask.width))
                else:
                    stored = np.asarray(mask)
        except MemoryError:
            raise
        except Exception as error:  # damaged files raise many types
            what = getattr(error, "strerror", None) or str(error) or type(error).__name__
            raise bad_image(self.root, path, what.replace(f" {path!r}", "")) from error
        if mode not in ("1", "L", "P") and not mode.startswith("I"):
            raise self._wrong(
                f"mask {path} is {mode}",
                "one channel of class numbers is allowed",
                "save its class numbers as gray levels or with a palette",
            )
        if kind == "JPEG":
            raise self._wrong(
                f"mask {path} is a JPEG, which changes class numbers",
                "formats without loss are allowed",
                "save the masks as PNG",
            )
        return stored.astype(np.uint8) if stored.dtype == np.bool_ else stored

    def _wrong(self, wrong: str, found: str, do: str) -> DataError:
        return Tree(self.root, HOLDS).wrong(wrong, found, do)


@functools.lru_cache(maxsize=8)
def class_numbers(
    classes: int, ignore: int | None, values: tuple[int, ...] | None
) -> npt.NDArray[np.int16]:
    """The class of each gray level, `ignore` of void and -1 of all others: int16 [GRAYS + 1]."""
    table = np.full(GRAYS + 1, -1, np.int16)
    if ignore is not None:
        table[ignore] = ignore
    table[np.arange(classes) if values is None else list(values)] = np.arange(classes)
    return table


def nearest(pixels: npt.NDArray[Any], height: int, width: int) -> npt.NDArray[Any]:
    """[h, w], cropped around the middle to the proportions of the result, to [height, width]."""
    tall, wide = pixels.shape
    if (tall, wide) == (height, width):
        return pixels
    across, down = min(wide, width / height * tall), min(tall, wide / (width / height))
    columns = (wide - across) / 2 + (np.arange(width) + 0.5) * across / width
    rows = (tall - down) / 2 + (np.arange(height) + 0.5) * down / height
    return pixels[np.ix_(rows.astype(np.int64), columns.astype(np.int64))]


def stem(path: str) -> str:
    return os.path.splitext(os.path.basename(path))[0]
