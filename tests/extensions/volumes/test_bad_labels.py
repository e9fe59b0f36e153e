"""Masks of volumes that cannot be trained on are one line each."""

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ninefold.errors import ConfigError
from tests.dataset.heads import AFFINE, SIDES, dataset, save, write_masks
from tests.faults.refusals import cut_short, refuses

MASK, VOLUME = "labelsTr/tr_001.nii.gz", "imagesTr/tr_001_0000.nii.gz"
Spoil = Callable[[Path], object]


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return write_masks(tmp_path / "heads", {"imagesTr": 4, "imagesTs": 2})


def mask(value: float, count: int = 5, dtype: Any = np.uint8, **how: Any) -> Spoil:
    stored = np.zeros(SIDES, dtype)
    stored.flat[:count] = value
    return lambda root: save(root / MASK, stored, **how)


FILES: dict[str, tuple[Spoil, str]] = {
    "no test masks": (
        lambda r: shutil.rmtree(r / "labelsTs"),
        "it holds no folder labelsTs; found .*labelsTr; .*list the cases to test on in test.txt",
    ),
    "a volume without a mask": (
        lambda r: (r / MASK).unlink(), "1 of 4 cases have no mask; looked for tr_001 in"
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
    "a mask cut short": (lambda r: cut_short(r / MASK), rf"{MASK} is no usable volume"),
    "colors": (
        lambda r: save(r / MASK, np.zeros(SIDES, [("R", "u1"), ("G", "u1"), ("B", "u1")])),
        "its voxels are .*not integers or floats",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", FILES)
def test_files_that_cannot_be_trained_on_are_refused_in_one_line(root, name):
    spoil, message = FILES[name]
    dataset(root).prepare()
    spoil(root)
    refuses(root, dataset(root).prepare, message)


OPTIONS: dict[str, tuple[dict[str, Any], str]] = {
    "targets": ({"targets": "boxes"}, "dataset.targets=boxes: not allowed; landmarks, masks or nu"),
    "ignore": ({"classes": 300, "ignore": 255}, "dataset.ignore=255: it is also one of 300"),
}


@pytest.mark.parametrize("name", OPTIONS)
def test_options_that_do_not_fit_are_refused_before_and_when_it_is_loaded(root, name):
    options, message = OPTIONS[name]
    wrong = dataset(root, **options)
    for look in (wrong.prepare, lambda: wrong.load("train")):
        with pytest.raises(ConfigError, match=message):
            look()
