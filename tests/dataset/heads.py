"""A small set of NIfTI files: bright balls in noise, and where their centers or voxels are."""

import json
from pathlib import Path
from typing import Any

import nibabel
import numpy as np

from ninefold.extensions.volumes.volumes import Volumes

NAMES = ("left", "right", "top")
SIDES = (14, 18, 12)  # voxels along the file's axes
# Left, anterior, superior with voxels of 2, 2 and 3 mm: neither RAS nor isotropic.
AFFINE = np.array([[-2.0, 0, 0, 14], [0, 2.0, 0, -18], [0, 0, 3.0, -18], [0, 0, 0, 1]])
COUNTS = {"imagesTr": 8, "imagesTs": 4}
SHAPE, SPACING = (1, 18, 18, 14), (2.0, 2.0, 2.0)  # as prepared
LEVELS = (150, 300)  # of a volume, where its classes 1 and 2 begin


def dataset(root: Path, **options: Any) -> Volumes:
    return Volumes(str(root), **{"classes": 3, "shape": SHAPE, "spacing": SPACING, **options})


def write(root: Path, counts: dict[str, int] = COUNTS, affine: Any = AFFINE) -> Path:
    """Write `counts` volumes in each folder, and landmarks.json; the last is at times absent."""
    random = np.random.default_rng(0)
    points: dict[str, dict[str, list[float]]] = {}
    for folder, count in counts.items():
        (root / folder).mkdir(parents=True)
        for row in range(count):
            case = f"{folder[-2:].lower()}_{row:03}"
            volume, places = head(random)
            save(root / folder / f"{case}_0000.nii.gz", volume, affine)
            points[case] = dict(zip(NAMES, places.tolist(), strict=True))
            if row % 4 == 3:
                del points[case][NAMES[-1]]
    (root / "landmarks.json").write_text(json.dumps(points))
    return root


def write_masks(root: Path, counts: dict[str, int] = COUNTS) -> Path:
    """The volumes of `write`, with masks in place of landmarks: class 2 is brighter than 1."""
    write(root, counts)
    (root / "landmarks.json").unlink()
    for folder in counts:
        labels = root / folder.replace("images", "labels")
        labels.mkdir()
        for path in (root / folder).iterdir():
            volume = np.asarray(nibabel.load(path).dataobj)
            save(labels / path.name.replace("_0000", ""), thresholded(volume))
    return root


def thresholded(volume: np.ndarray) -> np.ndarray:
    return np.digitize(volume, LEVELS).astype(np.uint8)


def save(path: Path, volume: np.ndarray, affine: Any = AFFINE) -> None:
    nibabel.save(nibabel.Nifti1Image(volume, affine), path)


def turned(
    volume: np.ndarray, spacing: tuple[float, float, float], axes: str
) -> tuple[np.ndarray, np.ndarray]:
    """A volume stored along other axes, such as LPS, and its affine."""
    upright = nibabel.Nifti1Image(volume, np.diag([*spacing, 1]))
    turn = nibabel.orientations.ornt_transform(
        nibabel.io_orientation(upright.affine), nibabel.orientations.axcodes2ornt(tuple(axes))
    )
    image = upright.as_reoriented(turn)
    return np.asarray(image.dataobj), image.affine


def head(random: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
    """A volume int16 of SIDES, and the centers of its balls in voxels, float64 [3, 3]."""
    grid = np.moveaxis(np.indices(SIDES), 0, -1).astype(np.float64)
    places = np.array([[3, 5, 4], [10, 5, 4], [7, 13, 8]]) + random.uniform(-1, 1, (3, 3)).round(2)
    volume = random.normal(100, 10, SIDES)
    for number, place in enumerate(places):
        volume += (400 + 200 * number) * np.exp(-((grid - place) ** 2).sum(-1) / 2)
    return volume.astype(np.int16), places
