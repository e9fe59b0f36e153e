"""Datasets of image files in one folder per class, decoded when they are read."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import ClassVar, TypeVar

import numpy as np
import numpy.typing as npt

from ninefold.dataset import Examples, Rows, Split, Unread, checked
from ninefold.dataset.images import (
    ENDINGS,
    OPENED,
    Tree,
    bad_image,
    ignore_warnings,
    listed,
    pixels,
    read_or,
    require_shape,
    spread,
)
from ninefold.errors import DataError
from ninefold.progress import bar

FOLDERS: dict[Split, tuple[str, ...]] = {
    "train": ("train",),
    "val": ("val",),
    "test": ("test", "val"),
}
HOLDS = "train/CLASS/IMAGE and test/CLASS/IMAGE"
T = TypeVar("T")


@dataclass(frozen=True)
class Folder:
    """An image classification dataset: root/{train,val,test}/CLASS/IMAGE, val or test optional.

    Without root/test, root/val is the test split. Classes and files are sorted by name, hidden
    ones left out. `limit` takes training files evenly spaced in that order, so that every class
    keeps its share.
    """

    root: str | None
    limit: int | None = None
    classes: int | None = None  # None: as many as there are class folders
    shape: Sequence[int] = (3, 224, 224)
    mean: Sequence[float] | None = None
    std: Sequence[float] | None = None
    flip: bool = True
    crop: int = 0
    val: float = 0
    exif: bool = False  # turn images as their EXIF orientation says
    cache: str | None = None
    cache_rate: float = 1.0
    cache_dir: str = "~/.cache/ninefold"
    resident: bool | str = "auto"

    @property
    def splits(self) -> tuple[Split, ...]:
        both = all((self._tree.path / name).is_dir() for name in ("val", "test"))
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
                raise self._tree.wrong(
                    f"training and {kind} classes differ",
                    "; ".join(said),
                    "give both the same class folders",
                )
        paths = [path for part in found.values() for files in part.values() for path in files]
        for path in bar(paths, "checking the images", unit="file", delay=1.0):
            self._tree.require_readable(path)
        for path in bar(spread(paths, OPENED), "opening images", unit="file", delay=1.0):
            self._files([path]).require_image(path)

    def count_classes(self) -> int:
        """The number of class folders. Raises DataError."""
        return len(self._classes("train"))

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
        return Files(paths, (channels, height, width), str(self.root), self.exif)

    @property
    def _tree(self) -> Tree:
        return Tree(self.root, HOLDS)

    def _classes(self, split: Split) -> dict[str, list[str]]:
        """The image files of each class, both in order. Raises DataError."""
        require_shape(self.shape)
        folder = self._split(split)
        classes = {entry.name: entry.path for entry in self._tree.entries(folder) if entry.is_dir()}
        if len(classes) < 2:
            raise self._tree.wrong(
                f"{folder} holds {'one class only' if classes else 'no class folders'}",
                f"found {listed(classes) if classes else 'no folders in it'}",
                "put the images of each class into a folder of its own there",
            )
        if self.classes not in (None, len(classes)):
            raise DataError(
                "dataset.classes",
                self.classes,
                f"{folder} has {len(classes)} class folders; found {listed(classes)}; set "
                f"dataset.classes={len(classes)}",
            )
        files = {name: self._tree.images(classes[name]) for name in sorted(classes)}
        empty = [name for name, found in files.items() if not found]
        if empty:
            raise self._tree.wrong(
                f"no images in {os.path.join(folder, empty[0])}",
                f"files that end in {', '.join(ENDINGS)} are looked for, not in folders below",
                "put images there, or remove the folder from train and test",
            )
        return files

    def _split(self, split: Split) -> Path:
        root = self._tree.path
        for name in FOLDERS[split]:
            if (root / name).is_dir():
                return root / name
        raise self._tree.wrong(
            f"it holds no folder {' or '.join(FOLDERS[split])}",
            f"found {listed(entry.name for entry in self._tree.entries(root))}",
            self._tree.elsewhere(lambda folder: split == "train" and (folder / split).is_dir()),
        )


@dataclass(frozen=True)
class Files(Unread):
    """Images in files, decoded to uint8 [n, channels, height, width] as `pixels` does it."""

    paths: Sequence[str]
    size: tuple[int, int, int]
    root: str
    exif: bool = False
    dtype: ClassVar[type[np.uint8]] = np.uint8

    def __post_init__(self) -> None:
        ignore_warnings()

    @property
    def shape(self) -> tuple[int, ...]:
        return (len(self.paths), *self.size)

    def read(self, rows: Rows) -> npt.NDArray[np.uint8]:
        images = np.empty((len(rows), *self.size), np.uint8)
        for image, row in zip(images, rows.tolist(), strict=True):
            image[:] = self._pixels(self.paths[row])
        return images

    def require_image(self, path: str) -> None:
        """Raise DataError unless the file has the header of a usable image."""
        self._pixels(path, decode=False)

    def _pixels(self, path: str, decode: bool = True) -> npt.NDArray[np.uint8]:
        with read_or(partial(bad_image, self.root, path), path):
            return pixels(path, self.size, self.exif, decode)
