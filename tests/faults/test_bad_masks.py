"""Files and keys of a segmentation that cannot be trained on are one line each."""

import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from ninefold.dataset.images import spread
from ninefold.dataset.masks import LOOKED_AT, ClassNumbers, Masks
from ninefold.errors import ConfigError, DataError
from tests.dataset.scenes import CLASSES, VOID, write
from tests.faults.refusals import cut_short, refuses_once_spoiled, refuses_options

MASK, IMAGE = "trainannot/scene_001.png", "train/scene_001.png"
Spoil = Callable[[Path], object]


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return write(tmp_path / "scenes", counts={"train": 4, "val": 2, "test": 2})


def paint(path: Path, value: int, count: int = 24 * 32) -> None:
    mask = np.zeros((24, 32), np.uint8)
    mask.flat[:count] = value
    Image.fromarray(mask).save(path)


def paint_all(root: Path, *values: int) -> None:
    for path in root.glob("*annot/*.png"):
        Image.fromarray(np.resize(np.array(values, np.uint8), (24, 32))).save(path)


def again(path: Path, **how: Any) -> None:
    with Image.open(path) as image:
        changed = image.copy()
    changed.save(path.with_suffix(how.pop("suffix", path.suffix)), **how)


FILES: dict[str, tuple[Spoil, str]] = {
    "an empty root": (
        lambda r: (shutil.rmtree(r), r.mkdir()),
        "no training images with masks are found; found nothing; .*trainannot",
    ),
    "no test split": (
        lambda r: [shutil.rmtree(r / name) for name in ("test", "val")],
        "no test images with masks; looked for test or val",
    ),
    "an image without a mask": (
        lambda r: (r / MASK).unlink(), r"1 of 4 images has no mask; looked for scene_001 in"
    ),
    "two masks for an image": (
        lambda r: again(r / MASK, suffix=".bmp"),
        r"scene_001\.bmp and .*scene_001\.png are masks of one image",
    ),
    "a value that is no class": (
        lambda r: paint(r / MASK, 7, 204),
        rf"mask .*{MASK} has the value 7 in 204 pixels; 0 to 2 and ignore=11 are allowed; "
        "set dataset.classes=8 or dataset.ignore=7",
    ),
    "a value of 255": (
        lambda r: paint(r / MASK, 255), r"has the value 255 in 768 pixels; .*dataset.values=\[0,255"
    ),
    "masks of void": (lambda r: paint_all(r, VOID), "8 masks hold the values 11 only; 11 is"),
    "a mask in color": (
        lambda r: Image.new("RGB", (32, 24)).save(r / MASK),
        rf"mask .*{MASK} is RGB; one channel of class numbers is allowed",
    ),
    "a mask as JPEG": (
        lambda r: ((r / MASK).unlink(), paint((r / MASK).with_suffix(".jpg"), 1)),
        "is a JPEG, which changes class numbers; .*; save the masks as PNG",
    ),
    "a mask of another size": (
        lambda r: Image.new("L", (16, 12)).save(r / MASK),
        rf"{IMAGE} is 32x24, its mask 16x12; .*{MASK} must have a pixel for each",
    ),
    "a mask cut short": (lambda r: cut_short(r / MASK), rf"{MASK} is no usable image"),
}  # fmt: skip


def dataset(root: Path, **options: Any) -> Masks:
    return Masks(str(root), **{"classes": CLASSES, "ignore": VOID, "shape": (3, 24, 32), **options})


@pytest.mark.parametrize("name", FILES)
def test_files_that_cannot_be_trained_on_are_refused_in_one_line(root, name):
    refuses_once_spoiled(dataset, root, *FILES[name])


def test_a_mask_of_another_size_is_found_when_it_is_decoded(root):
    """In a set of more pairs than `prepare` opens."""
    Image.new("L", (16, 12)).save(root / MASK)
    with pytest.raises(DataError, match=rf"{IMAGE} is 32x24, its mask 16x12; "):
        dataset(root).load("train").targets[np.array([1])]


OPTIONS: dict[str, tuple[dict[str, Any], type[DataError] | type[ConfigError], str]] = {
    "crop": ({"crop": 8, "ignore": None}, ConfigError, "dataset.crop=8: pixels outside need a"),
    "values": ({"values": [0, 255]}, ConfigError, r"dataset.values=\[0, 255\]: it lists 2, data"),
    "ignore": ({"classes": 300, "ignore": 255}, ConfigError, "dataset.ignore=255: it is also one"),
    "classes": ({"classes": 40_000}, ConfigError, "dataset.classes=40000: .*32767 classes at most"),
    "suffix": ({"mask_suffix": "_L"}, DataError, r"4 of 4 images have no mask; .*scene_000_L in"),
}  # fmt: skip


@pytest.mark.parametrize("name", OPTIONS)
def test_options_that_do_not_fit_are_refused_before_and_when_it_is_loaded(root, name):
    options, kind, message = OPTIONS[name]
    wrong = Masks(**{"root": str(root), "classes": CLASSES, "ignore": VOID, **options})
    refuses_options(wrong, "train", kind, message)


def test_a_gray_level_that_cannot_be_void_is_not_said_to_be_allowed_as_void():
    levels = ClassNumbers(3, None, (50, 100, 255))
    for value, said in ((0, "correct dataset.values"),
                        (7, "correct dataset.values or dataset.ignore=7")):  # fmt: skip
        assert levels.mistake("a", np.full((2, 2), value, np.uint8), "pixel")[-1] == said


def many(root: Path) -> Path:
    """A set of 203 masks, of which the one that is returned is not looked at before the start."""
    write(root, counts={"train": 201, "test": 2})
    pairs = sorted((root / "trainannot").iterdir()) + sorted((root / "testannot").iterdir())
    looked_at = set(spread(pairs, LOOKED_AT))
    return next(path for path in pairs if path not in looked_at)


def test_a_value_in_a_mask_not_looked_at_is_the_same_line_where_it_is_read(tmp_path):
    path = many(tmp_path / "scenes")
    paint(path, 7, 204)
    found = dataset(tmp_path / "scenes")
    found.prepare()
    targets = found.load("train").targets
    wrong = f"error: dataset.root={found.root}: mask {path} has the value 7 in 204 pixels; "
    with pytest.raises(DataError, match=f"^{re.escape(wrong)}"):
        targets[np.arange(len(targets))]
