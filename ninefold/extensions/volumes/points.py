"""The landmarks of volumes: points in a JSON file, brought to voxels of the prepared volumes."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from ninefold.dataset.images import ImageTree, listed
from ninefold.errors import DataError
from ninefold.extensions.volumes.nifti import Floats, Grid, VolumeFiles
from ninefold.files import read_json
from ninefold.numbers import counted
from ninefold.progress import bar


@dataclass(frozen=True)
class Points:
    """{case: {name: [x, y, z]}} in `path`, for volumes of `shape` and `spacing`.

    The other fields are those of Volumes.
    """

    path: Path
    tree: ImageTree
    shape: Sequence[int]
    spacing: Sequence[float]
    classes: int
    landmarks: Sequence[str] | None
    order: str | None
    unit: str

    def _stored(self) -> Mapping[str, Mapping[str, Any]]:
        """The landmarks of each case as the JSON has them. Raises DataError."""
        try:
            found = read_json(self.path, most=1 << 28)  # four million landmarks
        except (OSError, ValueError) as error:
            raise self._bad_points(
                f"{self.path} cannot be read ({getattr(error, 'strerror', None) or error})"
            ) from error
        if not isinstance(found, dict) or not all(
            isinstance(case, dict) for case in found.values()
        ):
            raise self._bad_points(f"{self.path} does not hold an object for each case")
        return found

    def names(self) -> list[str]:
        """The names of the landmarks, in order. Raises DataError if they are not `classes`."""
        found = {name for case in self._stored().values() for name in case}
        if self.landmarks is not None and set(self.landmarks) != found:
            lacking, more = set(self.landmarks) - found, found - set(self.landmarks)
            raise DataError(
                "dataset.landmarks",
                list(self.landmarks),
                f"unknown name: no case has {listed(lacking)}"
                if lacking
                else f"unknown name: the cases also have {listed(more)}",
                f"{self.path} has {listed(found)}",
                "correct dataset.landmarks or the file, whose names must be the same",
            )
        if len(found) != self.classes:
            wrong = f"{self.path} has {counted(len(found), 'landmark')}"
            do = f"set dataset.classes={len(found)}"
            raise DataError("dataset.classes", self.classes, wrong, f"found {listed(found)}", do)
        return list(self.landmarks) if self.landmarks is not None else sorted(found)

    def targets(
        self, cases: Sequence[str], volumes: VolumeFiles, names: Sequence[str]
    ) -> npt.NDArray[np.float32]:
        """The landmarks in prepared voxels z, y, x: [cases, names, 3], NaN where absent.

        volumes: of these cases, in this order. Raises DataError.
        """
        points = self._stored()
        if lacking := [case for case in cases if case not in points]:
            raise self._bad_points(
                f"{len(lacking):,} {'case has' if len(lacking) == 1 else 'cases have'} no "
                f"landmarks in {self.path}; first {lacking[0]}"
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
            raise self.tree.wrong(
                f'{case}: "{name}" at {stored} is outside {size}',
                f"its file has so many voxels along {', '.join(str(self.order))}, and "
                f"dataset.order={self.order}, dataset.unit={self.unit}",
                "correct dataset.order, dataset.unit or the landmark",
            )
        if not ((point >= -0.5) & (point <= np.array(self.shape[1:]) - 0.5)).all():
            raise self.tree.wrong(
                f'{case}: "{name}" at {[round(v, 1) for v in point.tolist()]} is outside '
                f"{list(self.shape[1:])}",
                f"a volume of {list(grid.sides)} voxels is centered there at "
                f"dataset.spacing={list(self.spacing)} (z, y, x)",
                "enlarge dataset.shape or dataset.spacing",
            )
        return np.asarray(point)

    def _bad_points(self, wrong: str) -> DataError:
        return self.tree.wrong(
            wrong,
            "{case: {name: [x, y, z]}} is allowed; a name may be absent or null",
            "correct the file",
        )
