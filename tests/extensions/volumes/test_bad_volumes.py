"""Volumes, landmarks and masks of volumes that cannot be trained on are one line each."""

import gzip
import json
import shutil
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import nibabel
import numpy as np
import pytest

from ninefold.errors import ConfigError, DataError
from tests.dataset.heads import AFFINE, NAMES, SHAPE, SIDES, dataset, save, write, write_masks
from tests.faults.refusals import cut_short, refuses_once_spoiled, refuses_options

MASK, VOLUME = "labelsTr/tr_001.nii.gz", "imagesTr/tr_001_0000.nii.gz"
Spoil = Callable[[Path], object]


COUNTS = {"imagesTr": 4, "imagesTs": 2}


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return write(tmp_path / "heads", COUNTS)


def points(root: Path, change: Callable[[dict[str, Any]], object]) -> None:
    path = root / "landmarks.json"
    found = json.loads(path.read_text())
    change(found)
    path.write_text(json.dumps(found))


def place(case: str, name: str, point: Any) -> Spoil:
    return lambda root: points(root, lambda found: found[case].__setitem__(name, point))


def raw(path: Path, offset: int, form: str, *values: float) -> None:
    """Write numbers into the header of a compressed file."""
    content = bytearray(gzip.decompress(path.read_bytes()))
    struct.pack_into("<" + form, content, offset, *values)
    path.write_bytes(gzip.compress(bytes(content)))


def filled(value: float, dtype: type = np.float32) -> np.ndarray:
    volume = np.random.default_rng(0).normal(100, 10, SIDES).astype(dtype)
    volume[3, 3, 3] = value
    return volume


def mask(value: float, count: int = 5, dtype: Any = np.uint8, **how: Any) -> Spoil:
    stored = np.zeros(SIDES, dtype)
    stored.flat[:count] = value
    return lambda root: save(root / MASK, stored, **how)


FILES: dict[str, tuple[Spoil, str]] = {
    "no volumes": (
        lambda r: [path.unlink() for path in (r / "imagesTr").iterdir()], "no volumes in .*imagesTr"
    ),
    "no training folder": (
        lambda r: shutil.rmtree(r / "imagesTr"), "no folder imagesTr; found imagesTs, landmarks"
    ),
    "no test split": (
        lambda r: shutil.rmtree(r / "imagesTs"), "no test split; looked for test.txt and the folder"
    ),
    "no landmarks": (
        lambda r: (r / "landmarks.json").unlink(), "no landmarks and no masks; .*write landmarks"
    ),
    "a name without a channel": (
        lambda r: (r / VOLUME).rename(r / "imagesTr" / "tr_001.nii.gz"),
        r"no channel number in the name of tr_001\.nii\.gz; .*CASE_0000\.nii\.gz",
    ),
    "two files of one channel": (
        lambda r: shutil.copy(r / VOLUME, r / "imagesTr" / "tr_001_0000.nii"),
        "are one channel of one case; .*; remove one of them",
    ),
    "test.txt of no case": (
        lambda r: (r / "test.txt").write_text("tr_001\ntr_1\n"), r"test\.txt lists tr_1; the cases"
    ),
    "JSON cut short": (
        lambda r: cut_short(r / "landmarks.json"), r"landmarks\.json cannot be read \("
    ),
    "JSON of lists": (
        lambda r: points(r, lambda found: found.update(tr_000=[1, 2, 3])), "an object for each case"
    ),
    "a case without landmarks": (
        lambda r: points(r, lambda found: found.pop("tr_002")),
        r"1 case has no landmarks in .*landmarks\.json; first tr_002",
    ),
    "a landmark of two numbers": (
        place("tr_001", "top", [1, 2]), r'tr_001: "top" is \[1, 2\]; .*\[x, y, z\]'
    ),
    "a landmark partly absent": (
        place("tr_001", "top", [1, float("nan"), 1]), r'"top" is \[1, nan, 1\], which is no place'
    ),
    "a landmark outside the file": (
        place("tr_001", "left", [4, 17.6, 4]),
        r'tr_001: "left" at \[4, 17.6, 4\] is outside \[14, 18, 12\]; .*dataset.order=xyz, '
        "dataset.unit=voxel; correct dataset.order",
    ),
    "compressed text": (
        lambda r: (r / VOLUME).write_bytes(gzip.compress(b"text")), r"\(it has no NIfTI header\)"
    ),
    "a volume cut short": (lambda r: cut_short(r / VOLUME), rf"{VOLUME} is no usable volume"),
    "no spacing": (
        lambda r: (raw(r / VOLUME, 252, "hh", 1, 0), raw(r / VOLUME, 80, "fff", 2, 0, 2)),
        rf"{VOLUME} is no usable volume \(no spacing in the header",
    ),
    "no orientation": (
        lambda r: raw(r / VOLUME, 252, "hh", 0, 0), "or no orientation: sform and qform are not set"
    ),
    "axes in one plane": (
        lambda r: raw(r / VOLUME, 280, "12f", 2, 0, 0, 0, 0, 2, 2, 0, 0, 0, 0, 0),
        "do not span three dimensions",
    ),
    "a huge volume": (
        lambda r: raw(r / VOLUME, 40, "4h", 3, 30000, 30000, 30000), "more than 1,073,741,824"
    ),
    "a volume over time": (
        lambda r: save(r / VOLUME, np.zeros((*SIDES, 2), np.int16)), r"its shape is \[14, 18, 12, 2"
    ),
    "complex voxels": (
        lambda r: save(r / VOLUME, np.zeros(SIDES, np.complex64)), "its voxels are complex64"
    ),
    "NaN": (lambda r: save(r / VOLUME, filled(np.nan)), "some of its voxels are not finite"),
    "a constant volume": (
        lambda r: save(r / VOLUME, np.full(SIDES, 7, np.int16)), "all its voxels are 7"
    ),
}  # fmt: skip


OF_MASKS: dict[str, tuple[Spoil, str]] = {
    "no test masks": (
        lambda r: shutil.rmtree(r / "labelsTs"),
        "it holds no folder labelsTs; found .*labelsTr; .*list the cases to test on in test.txt",
    ),
    "a volume without a mask": (
        lambda r: (r / MASK).unlink(), "1 of 4 cases has no mask; looked for tr_001 in"
    ),
    "two masks of a case": (
        lambda r: shutil.copy(r / MASK, r / "labelsTr" / "tr_001.nii"), "are masks of one case"
    ),
    "another shape": (
        lambda r: save(r / MASK, np.zeros((14, 18, 11), np.uint8)),
        rf"{MASK} is no usable volume \(it has other voxels than .*{VOLUME}\)",
    ),
    "another affine": (
        mask(0, affine=AFFINE @ np.diag([1, 1, 1.01, 1])), rf"{MASK} .*other voxels than .*{VOLUME}"
    ),
    "a value that is no class": (
        mask(7), rf"mask .*{MASK} has the value 7 in 5 voxels; 0 to 2 are allowed; "
        "set dataset.classes=8 or dataset.ignore=7"
    ),
    "a fraction": (
        mask(0.5, 9, np.float32), rf"mask .*{MASK} has 9 voxels of no class number, such as 0\.5; "
        "whole numbers are allowed"
    ),
    "NaN": (mask(np.nan, 1, np.float32), "has 1 voxels of no class number, such as nan"),
}  # fmt: skip


@pytest.mark.parametrize("name", FILES)
def test_files_that_cannot_be_trained_on_are_refused_in_one_line(root, name):
    refuses_once_spoiled(dataset, root, *FILES[name])


@pytest.mark.parametrize("name", OF_MASKS)
def test_masks_that_cannot_be_trained_on_are_refused_in_one_line(tmp_path, name):
    refuses_once_spoiled(dataset, write_masks(tmp_path / "heads", COUNTS), *OF_MASKS[name])


def test_channels_of_other_voxels_are_refused(root):
    for path in root.glob("images*/*_0000.nii.gz"):
        shutil.copy(path, str(path).replace("_0000", "_0001"))
    both = dataset(root, shape=(2, *SHAPE[1:]))
    both.prepare()
    path = root / "imagesTr" / "tr_001_0001.nii.gz"
    save(path, np.asarray(nibabel.load(path).dataobj), AFFINE @ np.diag([1.0, 1, 1.1, 1]))
    with pytest.raises(DataError, match=r"tr_001_0001.*it has other voxels than .*tr_001_0000"):
        both.prepare()


def test_landmarks_cut_off_by_the_shape_are_refused(root):
    line = (
        r'tr_000: "left" at \[[-\d., ]+\] is outside \[4, 18, 14\]; a volume of \[14, 18, 12\] '
        r"voxels is centered there at .*; enlarge dataset.shape or dataset.spacing"
    )
    with pytest.raises(DataError, match=line):
        dataset(root, shape=(1, 4, 18, 14)).prepare()


def test_landmarks_in_the_other_order_are_refused_with_a_hint(root):
    """Along x there are 14 voxels, along z 12: some landmark is outside, others may be wrong."""
    points(root, lambda found: found["tr_000"].update(left=[13, 5, 4]))
    with pytest.raises(DataError, match=r'"left" at \[13, 5, 4\] is outside \[12, 18, 14\]; .*zyx'):
        dataset(root, order="zyx").prepare()


OPTIONS: dict[str, tuple[dict[str, Any], type[DataError] | type[ConfigError], str]] = {
    "order": ({"order": "yxz"}, ConfigError, "dataset.order=yxz: not allowed; xyz or zyx"),
    "images": ({"shape": [1, 8, 8]}, DataError, r"dataset.shape=\[1, 8, 8\]: volumes cannot be"),
    "channels": (
        {"shape": [2, 8, 8, 8]}, DataError, r"t\w_000 in .* has the channels 0; 2, numbered"
    ),
    "number of landmarks": (
        {"classes": 4}, DataError, "dataset.classes=4: .*has 3 landmarks; .*set dataset.classes=3"
    ),
    "number of names": (
        {"landmarks": ["left"]}, ConfigError, r"landmarks=\['left'\]: it lists 1 name, data"
    ),
    "an unknown name": (
        {"landmarks": ["left", "right", "nose"]}, DataError, "unknown name: no case has nose; "
    ),
    "a name that is not listed": (
        {"landmarks": ["left", "top"], "classes": 2}, DataError, "the cases also have right; "
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", OPTIONS)
def test_options_that_do_not_fit_are_refused_before_and_when_it_is_loaded(root, name):
    options, kind, message = OPTIONS[name]
    refuses_options(dataset(root, **options), "test", kind, message)


def test_the_names_of_the_landmarks_may_be_in_any_order(root):
    names = NAMES[::-1]
    train, other = (dataset(root, landmarks=order).load("train") for order in (names, NAMES))
    assert train.names == names
    assert np.array_equal(
        np.asarray(train.targets)[:, ::-1], np.asarray(other.targets), equal_nan=True
    )
