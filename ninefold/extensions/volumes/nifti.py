"""NIfTI volumes: headers, orientation and spacing, decoded and resampled when they are indexed.

Only this module imports nibabel, and only when a volume is read.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
from scipy import ndimage

from ninefold.dataset.arrays import FileArray
from ninefold.dataset.images import ImageTree
from ninefold.errors import not_installed

Floats = npt.NDArray[np.float64]

TOPS = {"int16": 32767, "uint8": 255}  # what the upper end of the window becomes
PERCENTILES = (0.5, 99.5)
MILLIMETERS = {"meter": 1000.0, "micron": 0.001}  # NIfTI's units; an unknown one is mm
SILENT = logging.Logger("nifti", logging.CRITICAL + 1)  # for what nibabel mends in a header


def nibabel() -> Any:
    """The package nibabel. Raises ConfigError if it is not installed."""
    try:
        import nibabel
        import nibabel.nifti2
        import nibabel.openers
        import nibabel.orientations
    except ImportError as error:
        raise not_installed("dataset", "volumes", "nibabel", "volumes") from error
    return nibabel


@dataclass(frozen=True)
class Grid:
    """Where the voxels of a file are.

    sides: voxels along each of the file's axes.
    affine: float64 [4, 4], from the file's voxel indices to mm: right, anterior, superior.
    """

    sides: tuple[int, int, int]
    affine: Floats

    @property
    def orientation(self) -> Floats:
        """For each of the file's axes: the axis of RAS it becomes, and 1 or -1 (a flip)."""
        found: Floats = nibabel().orientations.io_orientation(self.affine)
        return found

    def to_voxels(self, millimeters: Floats) -> Floats:
        """Points [k, 3] in mm (right, anterior, superior) to the file's voxel indices."""
        inverse = np.linalg.inv(self.affine)
        return np.asarray(millimeters @ inverse[:3, :3].T + inverse[:3, 3])

    def to_prepared(self, points: Floats, shape: Sequence[int], spacing: Sequence[float]) -> Floats:
        """Points [k, 3] in the file's voxel indices to voxels z, y, x of the prepared volume."""
        back = np.linalg.inv(nibabel().orientations.inv_ornt_aff(self.orientation, self.sides))
        upright = points @ back[:3, :3].T + back[:3, 3]
        ratio, offset = self.sampling(shape, spacing)
        return np.asarray((upright[:, ::-1] - offset) / ratio)

    def sampling(self, shape: Sequence[int], spacing: Sequence[float]) -> tuple[Floats, Floats]:
        """(ratio, offset) for z, y, x: prepared voxel p is at ratio * p + offset in RAS voxels.

        The middle voxels coincide, so that a volume that has the spacing already stays as it is.
        """
        axes = np.argsort(self.orientation[:, 0])[::-1]  # the file's axes in the order z, y, x
        sides = np.array(self.sides)[axes]
        ratio = np.asarray(spacing, np.float64) / np.linalg.norm(self.affine[:3, :3], axis=0)[axes]
        ratio = ratio.round(6)  # of float32 in the header: an outer voxel would be outside by 1e-7
        return ratio, sides // 2 - ratio * (np.array(shape) // 2)

    def upright(self, stored: npt.NDArray[Any], dtype: npt.DTypeLike) -> npt.NDArray[Any]:
        """Voxels along the file's axes as voxels along z, y, x of RAS."""
        turned = nibabel().orientations.apply_orientation(stored, self.orientation)
        return np.ascontiguousarray(turned.transpose(), dtype)

    def resampled(
        self,
        upright: npt.NDArray[Any],
        shape: Sequence[int],
        spacing: Sequence[float],
        order: Literal[0, 1],
        outside: float,
    ) -> npt.NDArray[Any]:
        """The prepared volume [depth, height, width] of `upright`, and of its dtype.

        order: 1 for trilinear, 0 for the nearest voxel. outside: the value outside of the file.
        """
        ratio, offset = self.sampling(shape, spacing)
        return np.asarray(
            ndimage.affine_transform(
                upright, ratio, offset, tuple(shape), upright.dtype, order=order, cval=outside
            )
        )


@dataclass(frozen=True)
class VolumeFiles(FileArray):
    """Volumes in NIfTI files, decoded to [n, channels, depth, height, width].

    Each is brought to RAS, then z, y, x, resampled to `spacing` (mm for z, y, x; trilinear), put
    with its middle into the middle of the result, and its window is mapped to 0..TOPS[dtype].
    What is outside the window or the file is clipped, outside the file is the lower end.

    paths: of each example, a file for each channel.
    window: the lowest and highest value; None: the percentiles 0.5 and 99.5 of each file.
    """

    paths: Sequence[tuple[str, ...]]
    size: tuple[int, ...]
    spacing: Sequence[float]
    window: Sequence[float] | None
    dtype: str
    tree: ImageTree

    def decoded(self, path: Sequence[str]) -> npt.NDArray[Any]:
        return np.stack([self._channel(file) for file in path])

    def grid(self, row: int) -> Grid:
        """The voxels of an example's files. Raises DataError if they are not the same for all."""
        first, *others = (read_volume(self.tree, path, decode=False)[0] for path in self.paths[row])
        for other, path in zip(others, self.paths[row][1:], strict=True):
            require_same(self.tree, path, other, self.paths[row][0], first)
        return first

    def _channel(self, path: str) -> npt.NDArray[Any]:
        """The prepared volume of a file, [depth, height, width]. Raises DataError."""
        grid, stored = read_volume(self.tree, path)
        values = grid.upright(stored, np.float32)
        low, high = self._window(path, values)
        volume = grid.resampled(values, self.size[1:], self.spacing, 1, low)
        volume -= low
        volume *= TOPS[self.dtype] / (high - low)
        return np.asarray(np.rint(volume.clip(0, TOPS[self.dtype], out=volume)).astype(self.dtype))

    def _window(self, path: str, values: npt.NDArray[np.float32]) -> tuple[float, float]:
        least, most = float(values.min()), float(values.max())  # not finite if any value is not
        if not np.isfinite([least, most]).all():
            raise self.tree.bad(path, "some of its voxels are not finite")
        if self.window is not None:
            low, high = self.window
            return low, high
        if least == most:
            raise self.tree.bad(path, f"all its voxels are {least:g}")
        low, high = np.percentile(values, PERCENTILES).tolist()
        return (low, high) if low < high else (least, most)


def require_same(tree: ImageTree, path: str, grid: Grid, other: str, wanted: Grid) -> None:
    """Raise DataError unless the voxels of two files, `path` and `other`, are the same."""
    if grid.sides != wanted.sides or not np.allclose(grid.affine, wanted.affine, atol=1e-3):
        raise tree.bad(path, f"it has other voxels than {other}")


def read_volume(tree: ImageTree, path: str, decode: bool = True) -> tuple[Grid, npt.NDArray[Any]]:
    """The voxels of a file, and with `decode` their values along the file's axes.

    Raises DataError, in the name of the dataset of `tree`, if it cannot be used.
    """
    library = nibabel()
    with tree.reading(path), library.openers.ImageOpener(path) as file:
        header = read_header(library, file)
        grid = Grid(sides_of(header), affine_of(header))
        if not decode:
            return grid, np.empty(0)
        return grid, np.reshape(header.data_from_fileobj(file), grid.sides, order="A")


def read_header(library: Any, file: Any) -> Any:
    """The header of an open file, checked. Raises ValueError or what nibabel raises."""
    block = file.read(540)  # bytes of the header of NIfTI-2; that of NIfTI-1 has 348
    kinds = (library.Nifti1Header, library.nifti2.Nifti2Header)
    kind = next((kind for kind in kinds if kind.may_contain_header(block)), None)
    if kind is None:
        raise ValueError("it has no NIfTI header" if block else "it has 0 bytes")
    file.seek(0)
    header = kind.from_fileobj(file, check=False)
    placed = header["sform_code"] > 0
    if not placed and (header["qform_code"] <= 0 or not header["pixdim"][1:4].all()):
        raise ValueError("no spacing in the header, or no orientation: sform and qform are not set")
    header.check_fix(SILENT, error_level=40)  # it would replace a spacing of 0 by 1
    return header


def sides_of(header: Any) -> tuple[int, int, int]:
    """The voxels along x, y, z. Raises ValueError unless it is one volume of numbers."""
    shape, dtype = tuple(map(int, header.get_data_shape())), header.get_data_dtype()
    if len(shape) < 3 or any(side != 1 for side in shape[3:]) or min(shape[:3]) < 1:
        raise ValueError(f"its shape is {list(shape)}, not one volume of three dimensions")
    if dtype.kind not in "iuf":
        raise ValueError(f"its voxels are {dtype}, not integers or floats")
    most = 2**30  # 4 GiB as float32
    if np.prod(shape, dtype=np.float64) > most:
        raise ValueError(f"its shape is {list(shape)}, more than {most:,} voxels")
    return shape[0], shape[1], shape[2]


def affine_of(header: Any) -> Floats:
    """From voxel indices to mm, float64 [4, 4]. Raises ValueError if it cannot be inverted."""
    affine = np.array(header.get_best_affine(), np.float64)
    affine[:3] *= MILLIMETERS.get(header.get_xyzt_units()[0], 1.0)
    lengths = np.linalg.norm(affine[:3, :3], axis=0)
    if not (np.isfinite(affine).all() and lengths.min() > 0):
        raise ValueError("no spacing in the header: a voxel's size is 0 or not finite")
    if abs(np.linalg.det(affine[:3, :3] / lengths)) < 1e-3:
        raise ValueError("its axes in the header do not span three dimensions")
    return affine
