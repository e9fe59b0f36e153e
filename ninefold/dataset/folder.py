"""Datasets of image files in one folder per class, decoded when they are read."""

from __future__ import annotations

import os
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from ninefold.dataset import Dataset, Examples, Split
from ninefold.dataset.images import (
    ENDINGS,
    FOLDERS,
    OPENED,
    ImageFiles,
    ImageTree,
    listed,
    require_shape,
    splits_in,
    spread,
    unlike_classes,
)
from ninefold.errors import DataError
from ninefold.progress import bar

HOLDS = "train/CLASS/IMAGE and test/CLASS/IMAGE"


@dataclass(frozen=True)
class Folder(Dataset):
    """An image classification dataset: root/{train,val,test}/CLASS/IMAGE, val or test optional.

    val may be called valid or validation. Without root/test it is the test split. Classes and files
    are sorted by name, hidden ones left out. `limit` takes training files evenly spaced in that
    order, so that every class keeps its share.
    """

    root: str | None = None
    shape: Sequence[int] = (3, 224, 224)
    flip: bool = True
    exif: bool = False  # turn images as their EXIF orientation says

    @property
    def splits(self) -> tuple[Split, ...]:
        return splits_in(lambda name: (self._tree.path / name).is_dir())

    def prepare(self) -> None:
        """Check every file's size, type and permission, and the headers of up to OPENED files.

        What the header does not show (a file cut short) is found when the image is decoded.
        """
        found = {split: self._classes(split) for split in self.splits}
        if wrong := unlike_classes(found):
            raise self._tree.wrong(*wrong, "give both the same class folders")
        self._require_count("train", found["train"])
        paths = [path for part in found.values() for files in part.values() for path in files]
        self._tree.require_readable(paths)
        for path in bar(spread(paths, OPENED), "opening images", unit="file", delay=1.0):
            self._images([path]).decoded(path, decode=False)

    def count_classes(self) -> int:
        """The number of class folders. Raises DataError."""
        return len(self._classes("train"))

    def load(self, split: Split) -> Examples:
        classes = self._classes(split)
        self._require_count(split, classes)
        numbers = np.repeat(np.arange(len(classes)), [len(found) for found in classes.values()])
        labels = numbers[spread(range(len(numbers)), self.limit_of(split))]
        return Examples(self._images(self._paths(split, classes)), labels, tuple(classes))

    def sources(self, split: Split) -> Sequence[str]:
        return self._paths(split, self._classes(split))

    def _paths(self, split: Split, classes: Mapping[str, Sequence[str]]) -> Sequence[str]:
        return spread([path for of in classes.values() for path in of], self.limit_of(split))

    def _images(self, paths: Sequence[str]) -> ImageFiles:
        return ImageFiles(paths, tuple(self.shape), self._tree, self.exif)

    @property
    def _tree(self) -> ImageTree:
        return ImageTree(self.root, HOLDS)

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
        files = {name: self._tree.images(classes[name]) for name in sorted(classes)}
        empty = [name for name, found in files.items() if not found]
        if empty:
            raise self._tree.wrong(
                f"no images in {os.path.join(folder, empty[0])}",
                f"files that end in {', '.join(ENDINGS)} are looked for, not in folders below",
                "put images there, or remove the folder from train and test",
            )
        return files

    def _require_count(self, split: Split, classes: Collection[str]) -> None:
        """Raise DataError if there are not as many as `classes` says."""
        if self.classes not in (None, len(classes)):
            wrong = f"{self._split(split)} has {len(classes)} class folders"
            do = f"set dataset.classes={len(classes)}"
            raise DataError("dataset.classes", self.classes, wrong, f"found {listed(classes)}", do)

    def _split(self, split: Split) -> Path:
        root = self._tree.path
        for name in FOLDERS[split]:
            if (root / name).is_dir():
                return root / name
        raise self._tree.wrong(
            f"it holds no folder {' or '.join(FOLDERS[split])}",
            self._tree.listing(root),
            self._tree.elsewhere(lambda folder: split == "train" and (folder / split).is_dir()),
        )
