"""Make a landmark dataset: rotated, scaled and shifted copies of nibabel's anatomical.nii.

    python experiments/landmarks3d/make_data.py FOLDER [--train 64] [--test 32]

FOLDER/imagesTr and imagesTs hold the volumes (33x41x25 voxels of 2 mm), FOLDER/landmarks.json the
places of five points of high gradient in each. The same numbers make the same files.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

import nibabel
import numpy as np
import numpy.typing as npt
from scipy import ndimage
from scipy.spatial.transform import Rotation

DEGREES, SCALE, SHIFT = 15, 0.1, 3  # of each axis: at most so many degrees, shares and voxels
POINTS, APART, MARGIN = 5, 6.0, 2.0  # voxels between two points, and from the volume's end
Floats = npt.NDArray[np.float64]


def landmarks(volume: Floats) -> Floats:
    """POINTS places of the highest gradients in the inner half of a volume: [POINTS, 3]."""
    edges = ndimage.gaussian_gradient_magnitude(volume, 1.5)
    places = np.argwhere(edges > 0)
    middle = (np.array(volume.shape) - 1) / 2
    places = places[(np.abs(places - middle) <= middle * 0.6).all(axis=1)]
    places = places[np.argsort(edges[tuple(places.T)])[::-1]]
    chosen: list[npt.NDArray[np.int64]] = []
    for place in places:
        if all(np.linalg.norm(place - other) >= APART for other in chosen):
            chosen.append(place)
    return np.array(chosen[:POINTS], np.float64)


def moved(
    volume: Floats, points: Floats, random: np.random.Generator
) -> tuple[npt.NDArray[np.int16], Floats]:
    """A copy of `volume` moved at random, and where the points are in it, all of them inside."""
    middle, last = (np.array(volume.shape) - 1) / 2, np.array(volume.shape) - 1
    while True:
        turn = Rotation.from_euler("xyz", random.uniform(-DEGREES, DEGREES, 3), degrees=True)
        matrix = turn.as_matrix() * random.uniform(1 - SCALE, 1 + SCALE)
        shift = random.uniform(-SHIFT, SHIFT, 3)
        there = (points - middle) @ matrix.T + middle + shift
        if ((there >= MARGIN) & (there <= last - MARGIN)).all():
            break
    back = np.linalg.inv(matrix)  # affine_transform asks where each voxel of the result comes from
    found = ndimage.affine_transform(volume, back, middle - back @ (middle + shift), order=1)
    return np.rint(found).astype(np.int16), there


def main() -> None:
    description, _, _ = (__doc__ or "").partition("\n")
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--train", type=int, default=64)
    parser.add_argument("--test", type=int, default=32)
    arguments = parser.parse_args()
    head = nibabel.load(Path(nibabel.__file__).parent / "tests" / "data" / "anatomical.nii")
    volume = np.asarray(head.dataobj, np.float64)
    points = landmarks(volume)
    found = {}
    for number, (name, count) in enumerate(
        (("imagesTr", arguments.train), ("imagesTs", arguments.test))
    ):
        folder = arguments.folder / name
        folder.mkdir(parents=True, exist_ok=True)
        random = np.random.default_rng(number)
        for row in range(count):
            copy, there = moved(volume, points, random)
            case = f"{'train' if number == 0 else 'test'}_{row:03}"
            nibabel.save(nibabel.Nifti1Image(copy, head.affine), folder / f"{case}_0000.nii.gz")
            found[case] = {f"point {n}": place.round(3).tolist() for n, place in enumerate(there)}
    (arguments.folder / "landmarks.json").write_text(json.dumps(found, indent=1))


if __name__ == "__main__":
    main()
