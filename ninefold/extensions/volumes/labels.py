"""The masks of volumes: a NIfTI file of class numbers for each case."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from ninefold.dataset.images import ImageTree
from ninefold.dataset.masks import MaskArray
from ninefold.extensions.volumes.nifti import Grid, read_volume, require_same

NAME = re.compile(r"(.+)\.nii(\.gz)?")


@dataclass(frozen=True)
class LabelFiles(MaskArray):
    """Masks in NIfTI files, decoded to class numbers [n, depth, height, width].

    Each is turned, resampled and centered as its volume is (see VolumeFiles), by taking the nearest
    voxel. What is outside of the file is void; where `ignore` is None it is class 0, which is the
    background by nnU-Net's convention.
    """

    spacing: Sequence[float]

    def decoded(self, path: str) -> npt.NDArray[Any]:
        grid, stored = read_volume(self.tree, path)
        numbers = self.classes_of(path, self._integers(path, stored), "voxel")
        upright = grid.upright(numbers, self.numbers.dtype)
        return grid.resampled(upright, self.size, self.spacing, 0, self.numbers.ignore or 0)

    def require_fit(self, path: str, image: str, grid: Grid) -> None:
        """Raise DataError unless a mask has the voxels of its `image`, which are `grid`."""
        own, _ = read_volume(self.tree, path, decode=False)
        require_same(self.tree, path, own, image, grid)

    def _integers(self, path: str, stored: npt.NDArray[Any]) -> npt.NDArray[Any]:
        """The values of a mask, some of which are stored as floats."""
        if stored.dtype.kind != "f":
            return stored
        whole = np.rint(stored)
        wrong = stored[(whole != stored) | (np.abs(stored) > 2**31)]  # NaN is not itself
        if wrong.size:
            raise self.tree.wrong(
                f"mask {path} has {wrong.size:,} voxels of no class number, such as {wrong[0]:g}",
                "whole numbers are allowed",
                "save the class numbers as integers, resampled to the nearest voxel",
            )
        return np.asarray(whole, np.int64)


def labels_of(tree: ImageTree, folder: str, cases: Sequence[str]) -> list[str]:
    """The mask of each of `cases` in `folder`. Raises DataError."""
    path = tree.path / folder
    if not path.is_dir():
        raise tree.wrong(
            f"it holds no folder {folder}",
            tree.listing(tree.path),
            "put the masks there as CASE.nii.gz"
            + ("" if folder == "labelsTr" else ", or list the cases to test on in test.txt"),
        )
    files = ((NAME.fullmatch(entry.name), entry.path) for entry in tree.entries(path))
    named = ((match[1], file) for match, file in files if match)
    return tree.masks_of(cases, named, path, "case", "add the masks or remove the volumes")
