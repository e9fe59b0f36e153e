"""Set D, volumes: files and keys of landmarks that cannot be trained on are one line each."""

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
from tests.dataset.heads import AFFINE, NAMES, SHAPE, SIDES, dataset, save, write
from tests.faults.refusals import cut_short, refuses

VOLUME = "imagesTr/tr_001_0000.nii.gz"
Spoil = Callable[[Path], object]


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return write(tmp_path / "heads", {"imagesTr": 4, "imagesTs": 2})


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


FILES: dict[str, tuple[Spoil, str]] = {
    "no root": (shutil.rmtree, "no such folder; looked for /"),
    "a root above the data": (
        lambda r: (r.rename(r.with_name("s")), r.mkdir(), r.with_name("s").rename(r / "s")),
        "no landmarks and no masks; looked for .*; set dataset.root=.*/s$",
    ),
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


@pytest.mark.parametrize("name", FILES)
def test_files_that_cannot_be_trained_on_are_refused_in_one_line(root, name):
    spoil, message = FILES[name]
    dataset(root).prepare()
    spoil(root)
    refuses(root, dataset(root).prepare, message)


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
    "no order": (
        {"order": None}, ConfigError, "dataset.order=null: the numbers cannot be read .*xyz or zyx"
    ),
    "order": ({"order": "yxz"}, ConfigError, "dataset.order=yxz: not allowed; xyz or zyx"),
    "images": ({"shape": [1, 8, 8]}, DataError, r"dataset.shape=\[1, 8, 8\]: volumes cannot be"),
    "channels": (
        {"shape": [2, 8, 8, 8]}, DataError, r"t\w_000 in .* has the channels 0; 2, numbered"
    ),
    "spacing": ({"spacing": [2, 2]}, ConfigError, r"dataset.spacing=\[2, 2\]: .*three numbers"),
    "window": ({"window": [5, 5]}, ConfigError, r"dataset.window=\[5, 5\]: .*low below high"),
    "number of landmarks": (
        {"classes": 4}, DataError, "dataset.classes=4: .*has 3 landmarks; .*set dataset.classes=3"
    ),
    "number of names": (
        {"landmarks": ["left"]}, ConfigError, r"landmarks=\['left'\]: it lists 1 names, data"
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
    wrong = dataset(root, **options)
    for look in (wrong.prepare, lambda: wrong.load("test")):
        with pytest.raises(kind, match=message):
            look()


def test_the_names_of_the_landmarks_may_be_in_any_order(root):
    names = NAMES[::-1]
    train, other = (dataset(root, landmarks=order).load("train") for order in (names, NAMES))
    assert train.names == names
    assert np.array_equal(
        np.asarray(train.targets)[:, ::-1], np.asarray(other.targets), equal_nan=True
    )
