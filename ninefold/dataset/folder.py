"""Datasets of image files in one folder per class, decoded when they are read."""

from __future__ import annotations

import os
import stat
import warnings
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar, TypeVar, overload

import numpy as np
import numpy.typing as npt
from PIL import Image, ImageOps

from ninefold.dataset import Array, Examples, Rows, Split, checked
from ninefold.errors import DataError
from ninefold.progress import bar

ENDINGS = (".jpg", ".jpeg", ".png", ".webp", ".bmp", ".tif", ".tiff", ".ppm", ".pgm")
FOLDERS: dict[Split, tuple[str, ...]] = {
    "train": ("train",),
    "val": ("val",),
    "test": ("test", "val"),
}
MODES = {1: "L", 3: "RGB"}
T = TypeVar("T")
OPENED = 5000  # files that `prepare` opens, which takes a second or two


@dataclass(frozen=True)
class Folder:
    """An image classification dataset: root/{train,val,test}/CLASS/IMAGE, val or test optional.

    Without root/test, root/val is the test split. Classes and files are sorted by name, hidden
    ones left out. `limit` takes training files evenly spaced in that order, so that every class
    keeps its share.
    """

    root: str | None
    limit: int | None = None
    classes: int = 10
    shape: Sequence[int] = (3, 224, 224)
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
        both = all((self._root() / name).is_dir() for name in ("val", "test"))
        return ("train", "val", "test") if both else ("train", "test")

    def prepare(self) -> None:
        """Check every file's size, type and permission, and the headers of up to OPENED files.

        What the header does not show (a file cut short) is found when the image is decoded.
        """
        found = {split: self._classes(split) for split in self.splits}
        train = set(found["train"])
        for split, classes in found.items():
            if set(classes) != train:
                only = {"train": train - set(classes), split: set(classes) - train}
                said = [f"only in {name}: {listed(who)}" for name, who in only.items() if who]
                kind = {"val": "validation"}.get(split, split)
                raise self._wrong(
                    f"training and {kind} classes differ",
                    "; ".join(said),
                    "give both the same class folders",
                )
        paths = [path for part in found.values() for files in part.values() for path in files]
        for path in bar(paths, "checking the images", unit="file", delay=1.0):
            self._require_readable(path)
        for path in bar(spread(paths, OPENED), "opening images", unit="file", delay=1.0):
            self._files([path]).require_image(path)

    def load(self, split: Split) -> Examples:
        classes = self._classes(split)
        labels = np.repeat(np.arange(len(classes)), [len(found) for found in classes.values()])
        labels = np.array(self._limited(split, labels.tolist()), np.int64)
        examples = Examples(self._files(self._paths(split, classes)), labels, tuple(classes))
        return checked(f"the {split} split", self, examples)

    def sources(self, split: Split) -> Sequence[str]:
        """Paths of the images of `split`, for dataset.cache."""
        return self._paths(split, self._classes(split))

    def _paths(self, split: Split, classes: Mapping[str, Sequence[str]]) -> Sequence[str]:
        return self._limited(split, [path for found in classes.values() for path in found])

    def _limited(self, split: Split, items: Sequence[T]) -> Sequence[T]:
        return items if split != "train" or self.limit is None else spread(items, self.limit)

    def _files(self, paths: Sequence[str]) -> Files:
        channels, height, width = self.shape
        return Files(paths, (channels, height, width), str(self.root))

    def _wrong(self, wrong: str, found: str, do: str) -> DataError:
        return DataError(
            "dataset.root", "null" if self.root is None else self.root, wrong, found, do
        )

    def _classes(self, split: Split) -> dict[str, list[str]]:
        """The image files of each class, both in order. Raises DataError."""
        shape = list(self.shape)
        if (
            len(shape) != 3
            or shape[0] not in MODES
            or not all(isinstance(side, int) and side > 0 for side in shape)
        ):
            raise DataError(
                "dataset.shape",
                shape,
                "images cannot be made so",
                "[1 or 3 channels, height, width] is allowed",
                "correct dataset.shape",
            )
        folder = self._split(split)
        classes = {entry.name: entry.path for entry in self._entries(folder) if entry.is_dir()}
        if len(classes) < 2:
            raise self._wrong(
                f"{folder} holds {'one class only' if classes else 'no class folders'}",
                f"found {listed(classes) if classes else 'no folders in it'}",
                "put the images of each class into a folder of its own there",
            )
        if len(classes) != self.classes:
            raise DataError(
                "dataset.classes",
                self.classes,
                f"{folder} has {len(classes)} class folders",
                f"found {listed(classes)}",
                f"set dataset.classes={len(classes)}",
            )
        files = {name: self._images(classes[name]) for name in sorted(classes)}
        empty = [name for name, found in files.items() if not found]
        if empty:
            raise self._wrong(
                f"no images in {os.path.join(folder, empty[0])}",
                f"files that end in {', '.join(ENDINGS)} are looked for, not in folders below",
                "put images there, or remove the folder from train and test",
            )
        return files

    def _root(self) -> Path:
        if self.root is None:
            raise self._wrong(
                "no folder is given",
                "it holds train/CLASS/IMAGE and test/CLASS/IMAGE",
                "set dataset.root=FOLDER",
            )
        root = Path(self.root).expanduser()
        if not root.is_dir():
            raise self._wrong(
                "not a folder" if root.exists() else "no such folder",
                f"looked for {root.absolute()}",
                "set dataset.root to a folder of train and test",
            )
        return root

    def _split(self, split: Split) -> Path:
        root = self._root()
        for name in FOLDERS[split]:
            if (root / name).is_dir():
                return root / name
        raise self._wrong(
            f"it holds no folder {' or '.join(FOLDERS[split])}",
            f"found {listed(entry.name for entry in self._entries(root))}",
            "it must hold train/CLASS/IMAGE and test/CLASS/IMAGE",
        )

    def _images(self, folder: str) -> list[str]:
        return sorted(
            entry.path
            for entry in self._entries(folder)
            if entry.name.lower().endswith(ENDINGS) and not entry.is_dir()
        )

    def _entries(self, folder: str | Path) -> list[os.DirEntry[str]]:
        """The entries of `folder`, except hidden files, which macOS adds."""
        try:
            with os.scandir(folder) as entries:
                return [entry for entry in entries if not entry.name.startswith(".")]
        except OSError as error:
            raise self._wrong(
                f"{folder} cannot be read",
                error.strerror or type(error).__name__,
                "see that it can be read",
            ) from error

    def _require_readable(self, path: str) -> None:
        try:
            status = os.stat(path)
            wrong = "" if stat.S_ISREG(status.st_mode) else "it is no regular file"
            wrong = wrong or ("" if status.st_size else "it has 0 bytes")
            wrong = wrong or ("" if os.access(path, os.R_OK) else "permission denied")
        except OSError as error:
            wrong = error.strerror or type(error).__name__
        if wrong:
            raise bad_image(str(self.root), path, wrong)


@dataclass(frozen=True)
class Files:
    """Images in files, decoded to uint8 [n, channels, height, width] when they are indexed.

    Each is converted to gray or RGB (transparency is dropped), center-cropped to the proportions of
    `size` and resized to it, bilinear. The EXIF orientation is ignored, as torchvision does.
    """

    paths: Sequence[str]
    size: tuple[int, int, int]
    root: str
    dtype: ClassVar[type[np.uint8]] = np.uint8

    def __post_init__(self) -> None:
        # Warnings about metadata; for the whole process, as warning filters are not per thread.
        warnings.filterwarnings("ignore", module="PIL")

    @property
    def shape(self) -> tuple[int, ...]:
        return (len(self.paths), *self.size)

    def __len__(self) -> int:
        return len(self.paths)

    @overload
    def __getitem__(self, rows: Rows, /) -> npt.NDArray[np.uint8]: ...
    @overload
    def __getitem__(self, rows: slice, /) -> Array: ...
    def __getitem__(self, rows: Rows | slice, /) -> npt.NDArray[np.uint8] | Array:
        """Raises DataError with the name of a file that cannot be decoded."""
        if isinstance(rows, slice):
            return Files(self.paths[rows], self.size, self.root)
        images = np.empty((len(rows), *self.size), np.uint8)
        for image, row in zip(images, rows.tolist(), strict=True):
            image[:] = self._decoded(self.paths[row])
        return images

    def require_image(self, path: str) -> None:
        """Raise DataError unless the file has the header of a usable image."""
        self._read(path, decode=False)

    def _decoded(self, path: str) -> npt.NDArray[np.uint8]:
        pixels = self._read(path, decode=True)
        return pixels[None] if pixels.ndim == 2 else pixels.transpose(2, 0, 1)

    def _read(self, path: str, decode: bool) -> npt.NDArray[np.uint8]:
        channels, height, width = self.size
        try:
            with Image.open(path) as image:
                pixels, most = image.width * image.height, Image.MAX_IMAGE_PIXELS
                if most is not None and pixels > most:  # Pillow warns, and refuses twice as many
                    raise ValueError(f"Image size ({pixels} pixels) exceeds limit of {most} pixels")
                if image.mode.startswith(("I", "F")):
                    raise ValueError(f"its pixels, mode {image.mode}, have more than 8 bits")
                if not decode:
                    return np.empty(0, np.uint8)
                # A JPEG much larger than needed is decoded at a half, a quarter or an eighth.
                image.draft(None, (2 * width, 2 * height))
                plain = image.convert(MODES[channels])
                fitted = ImageOps.fit(plain, (width, height), Image.Resampling.BILINEAR)
                return np.asarray(fitted)
        except MemoryError:
            raise
        except Exception as error:  # damaged files raise many types
            what = getattr(error, "strerror", None) or str(error) or type(error).__name__
            raise bad_image(self.root, path, what.replace(f" {path!r}", "")) from error


def bad_image(root: str, path: str, wrong: str) -> DataError:
    return DataError(
        "dataset.root",
        root,
        f"{path} is no usable image ({wrong})",
        "whole files of 8 bits per channel that Pillow reads are",
        "replace or remove it",
    )


def spread(items: Sequence[T], count: int) -> list[T]:
    """`count` of `items`, evenly spaced; all of them if there are no more."""
    count = min(count, len(items))
    return [items[number * len(items) // count] for number in range(count)]


def listed(names: Iterable[str]) -> str:
    """The first of `names`, sorted, and how many more there are."""
    found = sorted(names)
    more = f" and {len(found) - 5} more" if len(found) > 5 else ""
    return ", ".join(found[:5]) + more if found else "nothing"
