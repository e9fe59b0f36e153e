"""Set D, masks of volumes: files and keys that cannot be trained on are one line each."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ninefold.errors import ConfigError
from tests.conftest import Shell
from tests.dataset.heads import AFFINE, SIDES, dataset, save, write_masks
from tests.faults.refusals import Key, cut_short, mistaken, mistakes, refuses

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
    "no training masks": (
        lambda r: shutil.rmtree(r / "labelsTr"), "no landmarks and no masks; looked for .*labelsTr"
    ),
    "no test masks": (
        lambda r: shutil.rmtree(r / "labelsTs"),
        "it holds no folder labelsTs; found .*labelsTr; .*list the cases to test on in test.txt",
    ),
    "a volume without a mask": (
        lambda r: (r / MASK).unlink(), "1 of 4 cases have no mask; looked for tr_001 in"
    ),
    "volumes without masks": (
        lambda r: [path.unlink() for path in (r / "labelsTs").iterdir()],
        "2 of 2 cases have no mask; looked for ts_000 in .*which holds nothing",
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
    "a negative value": (
        mask(-1, dtype=np.int16), r"has the value -1 in 5 voxels; 0 to 2 are .*; correct the mask"
    ),
    "a huge value": (
        mask(70_000, dtype=np.int32), "has the value 70000 in 5 voxels; 0 to .*; correct the mask$"
    ),
    "a fraction": (
        mask(0.5, 9, np.float32), rf"mask .*{MASK} has 9 voxels of no class number, such as 0\.5; "
        "whole numbers are allowed"
    ),
    "NaN": (mask(np.nan, 1, np.float32), "has 1 voxels of no class number, such as nan"),
    "infinity": (mask(np.inf, 2, np.float64), "has 2 voxels of no class number, such as inf"),
    "an empty mask": (lambda r: (r / MASK).write_bytes(b""), rf"{MASK} .*\(it has 0 bytes\)"),
    "a mask cut short": (lambda r: cut_short(r / MASK), rf"{MASK} is no usable volume"),
    "a mask that is text": (lambda r: (r / MASK).write_text("a"), rf"{MASK} is no usable volume"),
    "a directory": (
        lambda r: ((r / MASK).unlink(), (r / MASK).mkdir()), r"\(it is no regular file\)"
    ),
    "colors": (
        lambda r: save(r / MASK, np.zeros(SIDES, [("R", "u1"), ("G", "u1"), ("B", "u1")])),
        "its voxels are .*not integers or floats",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", FILES)
def test_files_that_cannot_be_trained_on_are_refused_in_one_line(root: Path, name: str) -> None:
    spoil, message = FILES[name]
    dataset(root).prepare()
    spoil(root)
    refuses(root, dataset(root).prepare, message)


OPTIONS: dict[str, tuple[dict[str, Any], str]] = {
    "targets": ({"targets": "boxes"}, "dataset.targets=boxes: not allowed; landmarks, masks or nu"),
    "landmarks": ({"landmarks": ["a", "b", "c"]}, "dataset.landmarks=.*: the targets are masks; "),
    "class_names": ({"class_names": ["a"]}, r"class_names=\['a'\]: it lists 1 names, dataset.cla"),
    "classes": ({"classes": 40_000}, "dataset.classes=40000: .*32767 classes at most"),
    "ignore": ({"classes": 300, "ignore": 255}, "dataset.ignore=255: it is also one of 300"),
}


@pytest.mark.parametrize("name", OPTIONS)
def test_options_that_do_not_fit_are_refused_before_and_when_it_is_loaded(
    root: Path, name: str
) -> None:
    options, message = OPTIONS[name]
    wrong = dataset(root, **options)
    for look in (wrong.prepare, lambda: wrong.load("train")):
        with pytest.raises(ConfigError, match=message):
            look()


SEGMENTATION = ("task=segmentation", "dataset=volumes", "dataset.shape=[1,18,18,14]",
                "dataset.classes=3", "model=unet3d", "model.net.width=4", "model.net.depth=2",
                "batch_size=2")  # fmt: skip
KEYS: list[Key] = [
    ("dataset.classes=2", 4, "dataset.root=", "has the value 2 in", False),
    ("task=landmarks", 2, "task=landmarks", "or another task", True),
    (
        "dataset.targets=landmarks",
        4,
        "dataset.root=",
        "no landmarks, only masks in labelsTr",
        False,
    ),
    ("dataset.targets=boxes", 2, "dataset.targets=boxes", "landmarks, masks", False),
    ("dataset.ignore=-1", 2, "dataset.ignore=-1", "whole number", False),
    ("dataset.flip=true", 2, "dataset.flip", "no such key", False),
    ("dataset.crop=2", 2, "dataset.crop", "no such key", False),
    ("model.input_size=32", 2, "model.input_size=32", "images only", False),
]


@mistakes(KEYS)
def test_a_mistake_in_the_keys_is_one_line(
    shell: Shell, root: Path, options: str, code: int, field: str, hint: str
) -> None:
    mistaken(shell, (*SEGMENTATION, f"dataset.root={root}"), options, code, field, hint)
