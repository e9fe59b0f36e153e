"""3-D landmarks: NIfTI volumes in folders and points in a JSON file."""

from __future__ import annotations

import itertools
import json
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
import numpy.typing as npt

from ninefold.dataset import Examples, Split
from ninefold.dataset.images import Tree, listed, spread, unusable
from ninefold.dataset.nifti import TOPS, Floats, Grid, VolumeFiles, bad_volume, nibabel
from ninefold.errors import ConfigError, DataError
from ninefold.progress import bar

if TYPE_CHECKING:  # it imports torch, which the checks before the start do not need
    from ninefold.dataset.preparation import VolumePreparation

POINTS = ("landmarks.json", "all_landmarks_voxel.json")  # the first that is there is read
HOLDS = "imagesTr/CASE_0000.nii.gz, landmarks.json, and imagesTs or test.txt"
NAME = re.compile(r"(.+)_(\d{4})\.nii(\.gz)?")
LOOKED_AT = 8  # volumes that `prepare` decodes, which may take a second each
CHOICES = {"order": ("xyz", "zyx"), "unit": ("voxel", "mm"), "dtype": tuple(TOPS)}
Cases = dict[str, tuple[str, ...]]  # the files of a case, one for each channel


@dataclass(frozen=True)
class Volumes:
    """A landmark dataset: root/imagesTr/CASE_0000.nii.gz and root/landmarks.json.

    The JSON is {case: {name: [x, y, z]}}; a name that a case does not have is absent in it. The
    test split is the cases listed in root/test.txt, one a line, or else those of root/imagesTs.
    Channel c of a case is CASE_000c. `limit` takes training cases evenly spaced by name.

    classes: the number of landmarks.
    shape: channels, depth, height, width of the prepared volume.
    spacing: mm between its voxels along z, y, x.
    order: of the numbers in the JSON, xyz or zyx.
    unit: voxel (indices along the file's axes i, j, k from 0, fractions allowed) or mm (right,
        anterior, superior, as the header's affine gives them).
    landmarks: their names in order; None: all in the JSON, sorted.
    window: see VolumeFiles, as dtype.
    """

    root: str | None
    limit: int | None = None
    classes: int = 1
    shape: Sequence[int] = (1, 96, 96, 96)
    spacing: Sequence[float] = (2.0, 2.0, 2.0)
    order: str | None = "xyz"
    unit: str = "voxel"
    landmarks: Sequence[str] | None = None
    window: Sequence[float] | None = None
    dtype: str = "int16"
    val: float = 0
    cache: str | None = None
    cache_rate: float = 1.0
    cache_dir: str = "~/.cache/ninefold"

    # A mirrored volume would exchange left and right landmarks.
    flip: ClassVar[bool] = False
    crop: ClassVar[int] = 0
    mean: ClassVar[None] = None
    std: ClassVar[None] = None

    def prepare(self) -> None:
        """Check options, files, all landmarks, the headers of all and the voxels of some volumes.

        What remains is found when a volume is decoded. Raises DataError, ConfigError.
        """
        nibabel()
        self._require_options()
        names = self._names()
        found = {split: self._cases(split) for split in ("train", "test")}
        cases = [files for part in found.values() for files in part.values()]
        for path in bar(
            list(itertools.chain(*cases)), "checking the volumes", unit="file", delay=1.0
        ):
            if wrong := unusable(path):
                raise bad_volume(str(self.root), path, wrong)
        for part in found.values():
            self._targets(part, names)
        volumes = self._volumes(cases)
        for files in bar(spread(cases, LOOKED_AT), "opening volumes", unit="case", delay=1.0):
            for path in files:
                volumes.decoded(path)

    def load(self, split: Split) -> Examples:
        self._require_options()
        cases, names = self._read(split), self._names()
        targets = self._targets(cases, names)
        return Examples(self._volumes(list(cases.values())), targets, tuple(names))

    def sources(self, split: Split) -> Sequence[str]:
        """The paths of all files that `load(split)` reads examples from: volumes, then points."""
        return [*itertools.chain(*self._read(split).values()), str(self._points_file())]

    def preparation(self, **options: Any) -> VolumePreparation:
        """What scales voxels to 0..1; nothing is augmented."""
        from ninefold.dataset.preparation import VolumePreparation

        return VolumePreparation(**options)

    @property
    def _tree(self) -> Tree:
        return Tree(self.root, HOLDS)

    def _volumes(self, paths: Sequence[tuple[str, ...]]) -> VolumeFiles:
        channels, depth, height, width = self.shape
        z, y, x = self.spacing
        window = None if self.window is None else (self.window[0], self.window[1])
        size = (channels, depth, height, width)
        return VolumeFiles(paths, size, (z, y, x), window, self.dtype, str(self.root))

    def _read(self, split: Split) -> Cases:
        cases = self._cases(split)
        if split != "train" or self.limit is None:
            return cases
        return {case: cases[case] for case in spread(list(cases), self.limit)}

    def _cases(self, split: Split) -> Cases:
        """The files of the cases of a split, in the order of their names. Raises DataError."""
        listing = self._tree.path / "test.txt"
        separate = self._tree.path / "imagesTs"
        if not listing.is_file():
            if split == "test" and not separate.is_dir():
                raise self._tree.wrong(
                    "it holds no test split",
                    f"looked for test.txt and the folder imagesTs in {self._tree.path}",
                    "list the cases to test on in test.txt, one a line",
                )
            return self._folder("imagesTs" if split == "test" else "imagesTr")
        cases = self._folder("imagesTr")
        try:
            lines = listing.read_text(encoding="utf-8").splitlines()
        except (OSError, ValueError) as error:
            raise self._tree.wrong(
                f"{listing} cannot be read",
                getattr(error, "strerror", None) or "it is no text in UTF-8",
                "write the name of a case on each line",
            ) from error
        chosen = {line.strip() for line in lines} - {""}
        if unknown := chosen - set(cases):
            raise self._tree.wrong(
                f"{listing} lists {listed(unknown)}",
                f"the cases in imagesTr are {listed(cases)}",
                "correct test.txt",
            )
        if not chosen or len(chosen) == len(cases):
            raise self._tree.wrong(
                f"{listing} lists {'all' if chosen else 'none'} of {len(cases)} cases",
                "some must be there to test on and others to train on",
                "correct test.txt",
            )
        return {case: cases[case] for case in cases if (case in chosen) == (split == "test")}

    def _folder(self, name: str) -> Cases:
        """The files of the cases in a folder. Raises DataError."""
        folder = self._tree.path / name
        if not folder.is_dir():
            raise self._tree.wrong(
                f"it holds no folder {name}",
                f"found {listed(entry.name for entry in self._tree.entries(self._tree.path))}",
                f"it must hold {HOLDS}",
            )
        found: dict[str, dict[int, str]] = {}
        others = []
        for entry in self._tree.entries(folder):
            match = NAME.fullmatch(entry.name)
            if match is None:
                others.append(entry.name)
                continue
            channels = found.setdefault(match[1], {})
            other = channels.setdefault(int(match[2]), entry.path)
            if other != entry.path:
                raise self._tree.wrong(
                    f"{other} and {entry.path} are one channel of one case",
                    "one file for each is allowed",
                    "remove one of them",
                )
        unnumbered = [other for other in others if other.endswith((".nii", ".nii.gz"))]
        if unnumbered or not found:
            raise self._tree.wrong(
                f"no channel number in the name of {min(unnumbered)}"
                if unnumbered
                else f"no volumes in {folder}",
                f"found {listed(others)}",
                "names such as CASE_0000.nii.gz are looked for; rename the files",
            )
        for case, channels in found.items():
            if sorted(channels) != list(range(self.shape[0])):
                raise DataError(
                    "dataset.shape",
                    list(self.shape),
                    f"{case} in {folder} has the channels {listed(map(str, channels))}",
                    f"{self.shape[0]}, numbered from 0000, are wanted",
                    "correct the first number of dataset.shape, or the files",
                )
        return {case: tuple(found[case][c] for c in range(self.shape[0])) for case in sorted(found)}

    def _points_file(self) -> Path:
        for name in POINTS:
            if (self._tree.path / name).is_file():
                return self._tree.path / name
        masks = (self._tree.path / "labelsTr").is_dir()
        raise self._tree.wrong(
            "it holds no landmarks" + (", only masks in labelsTr" if masks else ""),
            f"looked for {' and '.join(POINTS)} in {self._tree.path}",
            "write landmarks.json: {case: {name: [x, y, z]}}"
            + (", such as the centroids of the masks" if masks else ""),
        )

    def _points(self) -> Mapping[str, Mapping[str, Any]]:
        """The landmarks of each case as the JSON has them. Raises DataError."""
        path = self._points_file()
        try:
            found = json.loads(path.read_bytes())
        except (OSError, ValueError, RecursionError) as error:
            raise self._bad_points(
                f"{path} cannot be read ({getattr(error, 'strerror', None) or error})"
            ) from error
        if not isinstance(found, dict) or not all(
            isinstance(case, dict) for case in found.values()
        ):
            raise self._bad_points(f"{path} does not hold an object for each case")
        return found

    def _names(self) -> list[str]:
        """The names of the landmarks, in order. Raises DataError if they are not `classes`."""
        found = {name for case in self._points().values() for name in case}
        if self.landmarks is not None and set(self.landmarks) != found:
            lacking, more = set(self.landmarks) - found, found - set(self.landmarks)
            raise DataError(
                "dataset.landmarks",
                list(self.landmarks),
                f"unknown name: no case has {listed(lacking)}"
                if lacking
                else f"unknown name: the cases also have {listed(more)}",
                f"{self._points_file()} has {listed(found)}",
                "correct dataset.landmarks or the file, whose names must be the same",
            )
        if len(found) != self.classes:
            raise DataError(
                "dataset.classes",
                self.classes,
                f"{self._points_file()} has {len(found)} landmarks",
                f"found {listed(found)}",
                f"set dataset.classes={len(found)}",
            )
        return list(self.landmarks) if self.landmarks is not None else sorted(found)

    def _targets(self, cases: Cases, names: Sequence[str]) -> npt.NDArray[np.float32]:
        """The landmarks in prepared voxels z, y, x: [cases, names, 3], NaN where absent."""
        points, volumes = self._points(), self._volumes(list(cases.values()))
        if lacking := [case for case in cases if case not in points]:
            raise self._bad_points(
                f"{len(lacking):,} {'case has' if len(lacking) == 1 else 'cases have'} no "
                f"landmarks in {self._points_file()}; first {lacking[0]}"
            )
        targets = np.full((len(cases), len(names), 3), np.nan, np.float32)
        rows = bar(enumerate(cases), "reading headers", len(cases), unit="case", delay=1.0)
        for row, case in rows:
            grid = volumes.grid(row)
            for number, stored in self._present(case, points[case], names):
                targets[row, number] = self._prepared(case, names[number], stored, grid)
        return targets

    def _present(
        self, case: str, points: Mapping[str, Any], names: Sequence[str]
    ) -> Iterator[tuple[int, list[float]]]:
        """The number and the three numbers of each landmark that a case has. Raises DataError."""
        for name, point in points.items():
            if point is None:
                continue
            numbers = isinstance(point, list) and all(
                isinstance(value, int | float) and not isinstance(value, bool) for value in point
            )
            if not numbers or len(point) != 3:
                raise self._bad_points(f'{case}: "{name}" is {json.dumps(point)[:60]}')
            if all(math.isnan(value) for value in point):
                continue
            if not all(abs(value) < 1e9 for value in point):
                raise self._bad_points(f'{case}: "{name}" is {point}, which is no place')
            yield names.index(name), point

    def _prepared(self, case: str, name: str, stored: list[float], grid: Grid) -> Floats:
        """A landmark in prepared voxels. Raises DataError if it is outside of the volume."""
        given = np.array([stored if self.order == "xyz" else stored[::-1]], np.float64)
        inner = grid.to_voxels(given) if self.unit == "mm" else given
        point = grid.to_prepared(inner, self.shape[1:], self.spacing)[0]
        sides = np.array(grid.sides)
        if not ((inner[0] >= -0.5) & (inner[0] <= sides - 0.5)).all():
            size = list(grid.sides if self.order == "xyz" else grid.sides[::-1])
            raise self._tree.wrong(
                f'{case}: "{name}" at {stored} is outside {size}',
                f"its file has so many voxels along {', '.join(str(self.order))}, and "
                f"dataset.order={self.order}, dataset.unit={self.unit}",
                "correct dataset.order, dataset.unit or the landmark",
            )
        if not ((point >= -0.5) & (point <= np.array(self.shape[1:]) - 0.5)).all():
            raise self._tree.wrong(
                f'{case}: "{name}" at {[round(v, 1) for v in point.tolist()]} is outside '
                f"{list(self.shape[1:])}",
                f"a volume of {list(grid.sides)} voxels is centered there at "
                f"dataset.spacing={list(self.spacing)} (z, y, x)",
                "enlarge dataset.shape or dataset.spacing",
            )
        return np.asarray(point)

    def _bad_points(self, wrong: str) -> DataError:
        return self._tree.wrong(
            wrong,
            "{case: {name: [x, y, z]}} is allowed; a name may be absent or null",
            "correct the file",
        )

    def _require_options(self) -> None:
        """Raise DataError or ConfigError if an option cannot be used."""
        for key, allowed in CHOICES.items():
            value = getattr(self, key)
            if value not in allowed:
                raise ConfigError(
                    f"dataset.{key}",
                    "null" if value is None else value,
                    "the numbers cannot be read without it" if value is None else "not allowed",
                    f"{' or '.join(allowed)} is allowed",
                    f"set dataset.{key} to what the data has",
                )
        if len(self.shape) != 4:
            raise DataError(
                "dataset.shape",
                list(self.shape),
                "volumes cannot be made so",
                "[channels, depth, height, width] is allowed",
                "correct dataset.shape",
            )
        if len(self.spacing) != 3 or not all(0 < mm < math.inf for mm in self.spacing):
            raise ConfigError(
                "dataset.spacing",
                list(self.spacing),
                "volumes cannot be resampled so",
                "three numbers above 0, mm along z, y, x, are allowed",
                "correct dataset.spacing",
            )
        if self.window is not None and (
            len(self.window) != 2 or not self.window[0] < self.window[1]
        ):
            raise ConfigError(
                "dataset.window",
                list(self.window),
                "it is no window of values",
                "[low, high] with low below high, or null, is allowed",
                "correct dataset.window",
            )
        if self.landmarks is not None and len(set(self.landmarks)) != self.classes:
            raise ConfigError(
                "dataset.landmarks",
                list(self.landmarks),
                f"it lists {len(set(self.landmarks))} names, dataset.classes={self.classes}",
                "one for each landmark is allowed",
                "correct dataset.landmarks or dataset.classes",
            )
