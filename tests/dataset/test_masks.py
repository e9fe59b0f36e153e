"""dataset=masks: layouts, class numbers, and one cut and one draw for an image and its mask."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import torch
from PIL import Image, ImageOps

from ninefold.dataset import train_and_val
from ninefold.dataset.loader import HostSource
from ninefold.dataset.masks import LAYOUTS, Masks, nearest
from ninefold.dataset.preparation import ImagePreparation
from ninefold.errors import ConfigError
from tests.dataset.kit import epoch
from tests.dataset.scenes import CLASSES, COUNTS, VOID, write


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return write(tmp_path / "scenes")


def masks(root: Path, **options: Any) -> Masks:
    return Masks(str(root), **{"classes": CLASSES, "ignore": VOID, "shape": (3, 24, 32), **options})


def all_of(array: Any) -> npt.NDArray[Any]:
    return array[np.arange(len(array))]


@pytest.mark.parametrize("layout", LAYOUTS, ids=" + ".join)
def test_every_layout_is_found_by_itself(tmp_path, layout):
    dataset = masks(write(tmp_path, layout))
    dataset.prepare()
    assert dataset.splits == ("train", "val", "test")
    for split, count in COUNTS.items():
        examples = dataset.load(split)
        assert examples.inputs.shape == (count, 3, 24, 32)
        assert examples.targets.shape == (count, 24, 32)


def test_images_and_masks_are_those_of_the_files_pixel_by_pixel(root):
    train = masks(root).load("train")
    inputs, targets = all_of(train.inputs), all_of(train.targets)
    assert (inputs.dtype, targets.dtype) == (np.uint8, np.uint8)
    for row in range(COUNTS["train"]):
        with Image.open(root / "train" / f"scene_{row:03}.png") as image:
            assert np.array_equal(inputs[row], np.asarray(image).transpose(2, 0, 1))
        with Image.open(root / "trainannot" / f"scene_{row:03}.png") as mask:
            assert np.array_equal(targets[row], np.asarray(mask))


def test_without_a_test_split_val_is_the_test_split(tmp_path):
    dataset = masks(write(tmp_path, counts={"train": 4, "val": 2}))
    (tmp_path / "test").mkdir()  # images without masks are none
    dataset.prepare()
    assert dataset.splits == ("train", "test")
    assert len(dataset.load("test")) == 2
    train, val = train_and_val(masks(tmp_path, val=0.25), 0)
    assert (len(train), len(val)) == (3, 1)
    assert all_of(val.targets).shape == (1, 24, 32)


def test_a_mask_has_the_name_of_its_image_and_a_suffix(tmp_path):
    dataset = masks(write(tmp_path, ending=".jpg", suffix="_mask"), mask_suffix="_mask")
    dataset.prepare()
    paths = dataset.sources("test")
    assert [Path(path).name for path in (paths[0], paths[10])] == [
        "scene_000.jpg", "scene_000_mask.png",
    ]  # fmt: skip


def mask_as(root: Path, change: Callable[[Image.Image], Image.Image]) -> None:
    for path in root.glob("*annot/*.png"):
        with Image.open(path) as mask:
            changed = change(mask)
        changed.save(path)


def colored(mask: Image.Image) -> Image.Image:
    palette = mask.convert("P")
    palette.putdata(list(mask.get_flattened_data()))
    palette.putpalette([(7 * number) % 256 for number in range(768)])
    return palette


def grays(mask: Image.Image) -> Image.Image:
    levels = np.full(256, 9, np.uint8)
    levels[[0, 1, 2, VOID]] = [255, 0, 128, VOID]
    return Image.fromarray(levels[np.asarray(mask)])


def black_and_white(mask: Image.Image) -> Image.Image:
    return Image.fromarray(np.uint8(255) * (np.asarray(mask) == 1))


TWO = {"classes": 2, "ignore": 255}


@pytest.mark.parametrize(
    ("change", "options"),
    [
        (colored, {}),
        (lambda mask: Image.fromarray(np.asarray(mask).astype(np.uint16)), {}),
        (grays, {"values": [255, 0, 128]}),
        (black_and_white, {**TWO, "values": [0, 255]}),
        (lambda mask: black_and_white(mask).convert("1"), TWO),  # of 1 bit: no values are needed
    ],
    ids=["palette", "16 bits", "gray levels", "black and white", "1 bit"],
)
def test_palette_16_bit_and_black_and_white_masks_are_read_as_classes(root, change, options):
    before = all_of(masks(root).load("train").targets)
    mask_as(root, change)
    dataset = masks(root, **options)
    dataset.prepare()
    after = all_of(dataset.load("train").targets)
    assert after.dtype == np.uint8
    assert np.array_equal(after, before == 1 if "classes" in options else before)


@pytest.mark.parametrize(
    ("classes", "ignore", "dtype"),
    [(255, 255, np.uint8), (256, 300, np.int16), (256, None, np.int16), (3, 1000, np.int16)],
)
def test_masks_are_of_16_bits_only_where_8_do_not_suffice(root, classes, ignore, dtype):
    dataset = masks(root, classes=classes, ignore=ignore)
    mask_as(root, lambda mask: Image.fromarray(np.asarray(mask) % 3))
    assert all_of(dataset.load("test").targets).dtype == dtype


@pytest.mark.parametrize("shape", [(12, 16), (24, 24), (8, 30), (50, 70), (23, 31)])
@pytest.mark.parametrize("axis", [0, 1])
def test_a_mask_is_cut_as_its_image_and_resized_to_the_nearest_pixel(shape, axis):
    """As Pillow does it, whose sums round otherwise where a point is between two pixels."""
    places = np.indices((24, 32), np.uint8)[axis]
    expected = ImageOps.fit(Image.fromarray(places), shape[::-1], Image.Resampling.NEAREST)
    off = nearest(places, *shape).astype(int) - np.asarray(expected)
    assert np.abs(off).max() <= 1
    assert np.count_nonzero(off) <= 0.07 * off.size


def test_a_crop_leaves_void_in_the_mask_and_black_in_the_image(root):
    """The image tells a pixel's class: what is moved together still fits together."""
    for path in (root / "train").iterdir():
        with Image.open(root / "trainannot" / path.name) as mask:
            levels = np.asarray(mask).astype(int) * 20 + 10
        Image.fromarray(levels.astype(np.uint8)).convert("RGB").save(path)
    dataset = masks(root, crop=4)
    prepare = dataset.preparation(channels=3, flip=True, crop=4)
    found = epoch(HostSource(dataset.load("train")), prepare)
    inputs, targets = map(torch.cat, zip(*found, strict=True))
    levels = (inputs * 255).round().int()[:, 0]
    outside = levels == 0
    assert outside.any()
    assert targets.dtype == torch.uint8
    assert (targets[outside] == VOID).all()
    assert torch.equal(targets[~outside].int() * 20 + 10, levels[~outside])


def test_the_input_size_of_a_model_never_touches_the_truth():
    images = torch.zeros(2, 3, 4, 4, dtype=torch.uint8)
    truth = torch.arange(32, dtype=torch.uint8).view(2, 4, 4)
    inputs, targets = ImagePreparation(3, size=8)(images, truth, None)
    assert inputs.shape == (2, 3, 8, 8)
    assert torch.equal(targets, truth)


def test_a_crop_leaves_void_in_a_mask_of_booleans_too():
    prepare = ImagePreparation(channels=None, crop=4, outside=VOID)
    images, masks = torch.ones(8, 3, 6, 6), torch.ones(8, 6, 6, dtype=torch.bool)
    (draw,) = prepare.draws(0, 0, np.arange(8)[None], images.shape, torch.device("cpu"))
    _, found = prepare(images, masks, draw)
    assert {*found.unique().tolist()} == {1, VOID}
    _, same = ImagePreparation(channels=None)(images, masks, None)
    assert torch.equal(same, masks)


def test_void_may_be_a_class_that_was_chosen(root):
    """As the 0 of masks that count their classes from 1."""
    mask_as(root, lambda mask: Image.fromarray(np.asarray(mask) % 3))
    masks(root, ignore=0).prepare()


def test_without_a_number_of_classes_no_mask_is_read(root):
    with pytest.raises(ConfigError, match=r"^error: dataset\.classes=null: masks do not say how "):
        masks(root, classes=None).prepare()
