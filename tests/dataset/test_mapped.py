"""dataset=mapped: items of any Dataset class, the same draws for the same seed, epoch and item."""

import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from ninefold.config import data
from ninefold.dataset import items, train_and_val
from ninefold.dataset.layout import Layout
from ninefold.dataset.loader import HostSource
from ninefold.dataset.mapped import Mapped
from ninefold.dataset.preparation import ImagePreparation
from ninefold.engine.batches import shard
from ninefold.errors import ConfigError, DataError
from tests.dataset import mine
from tests.dataset.kit import ALONE, epoch
from tests.dataset.mine import made

MINE = "tests.dataset.mine"


def item(kind: str, **more: Any) -> Mapped:
    """A dataset of items of one kind, in both splits."""
    node = {"_target_": f"{MINE}.Item", "kind": kind}
    return Mapped(train=node, test=node, shape=(3, 6, 4), **more)


def noise(**more: Any) -> Mapped:
    node = {"_target_": f"{MINE}.Digits", "count": 50}
    return Mapped(train=node, test=node, shape=(1, 8, 8), **more)


def prepared(dataset: Mapped, count: int = 2, **options: Any) -> tuple[Any, Any]:
    """The first training examples, as an evaluation has them."""
    prepare = ImagePreparation(channels=3, **options)
    return next(shard(HostSource(dataset.load("train").first(count)), count, prepare, ALONE))


def test_a_configured_class_is_built_once_for_each_split_of_a_command(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)  # another command's data would be another
    built: list[int] = []
    build = mine.Item.__init__
    monkeypatch.setattr(
        mine.Item, "__init__", lambda *given, **more: (built.append(1), build(*given, **more))[1]
    )
    node = {"_target_": f"{MINE}.Item", "kind": "hwc"}
    job = {"_target_": "ninefold.dataset.mapped.Mapped", "_recursive_": False, "classes": 5,
           "train": node, "test": node, "shape": [3, 6, 4]}  # fmt: skip
    for _ in range(3):
        data.prepare(job, "mapped")
    assert len(built) == 2
    data.prepare({**job, "classes": 6}, "mapped")
    assert len(built) == 4


@pytest.mark.parametrize("kind", ["hwc", "chw", "pil", "tensor", "mapping"])
def test_images_of_every_kind_become_bytes_with_channels_first(kind):
    dataset = item(kind, keys=["image", "label"] if kind == "mapping" else None)
    dataset.prepare()
    found = dataset.load("train")
    rows = np.array([7, 3])
    assert found.inputs[rows].dtype == np.uint8
    for image, row in zip(found.inputs[rows], rows.tolist(), strict=True):
        np.testing.assert_array_equal(image, made("chw", row)[0])
    targets = found.targets[rows]
    assert (targets.dtype, targets.tolist()) == (np.int64, [2, 3])


def test_floats_are_taken_as_they_are_with_mean_and_std_alone():
    inputs, _ = prepared(item("floats"), mean=(0.5, 0.4, 0.3), std=(2.0, 1.0, 0.5))
    plain, _ = prepared(item("floats"))
    expected = np.stack([made("floats", n)[0].transpose(2, 0, 1) for n in (0, 1)])
    assert inputs.dtype == torch.float32
    np.testing.assert_allclose(plain.numpy(), expected, rtol=1e-6)
    mean, std = (np.reshape(v, (3, 1, 1)) for v in ([0.5, 0.4, 0.3], [2.0, 1.0, 0.5]))
    np.testing.assert_allclose(inputs.numpy(), (expected - mean) / std, rtol=1e-6, atol=1e-6)


def test_masks_are_bytes_and_points_floats_that_stay_as_they_are():
    masks = item("mask", classes=5).load("train")
    assert masks.targets[np.array([4])].dtype == np.uint8
    assert masks.targets.shape == (48, 6, 4)
    many = item("mask", classes=300, ignore=None).load("train")
    assert many.targets[np.array([4])].dtype == np.int16
    _, targets = prepared(item("points"))
    assert targets.tolist() == np.stack([np.full((2, 2), n) for n in (0, 1)]).tolist()


def test_a_mask_may_hold_class_numbers_and_the_number_of_void():
    rows = np.arange(40)
    expected = np.stack([made("void mask", n)[1] for n in rows.tolist()])
    assert set(np.unique(expected)) == {0, 1, 2, 255}
    found = item("void mask", classes=3).load("train").targets[rows]
    np.testing.assert_array_equal(found, expected)
    item("mask", classes=5, ignore=None).prepare()
    with pytest.raises(DataError, match="mask of item 0 has the value 255 in 6 pixels; 0 to 2 are"):
        item("void mask", classes=3, ignore=None).prepare()


def test_a_number_for_each_pixel_is_kept_or_refused_and_never_another_one():
    image, layout = np.zeros((3, 2, 2), np.uint8), Layout("dataset", "own.Depth")
    kept = layout.of_first((image, np.full((2, 2), 32767))).arrays(0, (image, np.ones((2, 2), int)))
    assert kept[1].tolist() == [[1, 1], [1, 1]]
    with pytest.raises(DataError, match=r"numbers up to 40000 in its pixels; .* as floats"):
        layout.of_first((image, np.full((2, 2), 40000, np.uint16)))


def test_black_and_white_masks_are_not_taken_for_void():
    said = r"7 masks hold the values 0, 255 only; 255 is ignored .*; divide black and white masks"
    with pytest.raises(DataError, match=said):
        item("black and white", classes=2).prepare()
    with pytest.raises(DataError, match=r"the value 255 in .*; 0 to 1 are allowed; divide black"):
        item("black and white", classes=2, ignore=None).prepare()


def test_an_item_has_the_same_draws_for_one_seed_and_epoch_and_others_in_the_next():
    found, rows = noise().load("train"), np.arange(50)
    assert len({tuple(words) for words in items.seeds(0, 1, rows)}) == 50  # each has its own
    first = found.in_epoch(0, 1).inputs[rows]
    again = found.first(20).in_epoch(0, 1).inputs[np.array([13])]  # another batch, another limit
    np.testing.assert_array_equal(again[0], first[13])
    assert (found.in_epoch(0, 2).inputs[rows] != first).any(axis=(1, 2, 3)).all()
    assert (found.in_epoch(1, 1).inputs[rows] != first).any(axis=(1, 2, 3)).all()
    train, val = train_and_val(noise(val=0.2), seed=0)
    assert val is not None
    (inside,) = train.in_epoch(0, 1).inputs[np.array([5])]
    assert any((inside == image).all() for image in first)


def test_an_item_is_read_once_for_its_input_and_its_target(monkeypatch):
    seen: list[int] = []
    read_item = mine.Digits.__getitem__
    monkeypatch.setattr(
        mine.Digits, "__getitem__", lambda self, n: (seen.append(n), read_item(self, n))[1]
    )
    source = HostSource(noise().load("train"))
    seen.clear()
    epoch(source, ImagePreparation(channels=1), size=10)
    assert sorted(seen) == list(range(50))


def test_reading_leaves_the_generators_of_the_process_as_they_were():
    torch.manual_seed(5), np.random.seed(5), random.seed(5)
    expected = torch.rand(3).tolist(), np.random.rand(3).tolist(), random.random()
    torch.manual_seed(5), np.random.seed(5), random.seed(5)
    noise().load("train").inputs[np.arange(4)]
    assert (torch.rand(3).tolist(), np.random.rand(3).tolist(), random.random()) == expected


def test_a_class_with_random_transforms_is_not_cached():
    with pytest.raises(
        DataError, match=r"dataset.cache=disk, but item 0 is another when it is rea"
    ):
        noise(cache="disk").prepare()
    item("hwc", cache="disk").prepare()


def test_the_sources_of_a_split_are_the_file_of_its_class():
    assert [Path(path).name for path in item("hwc").sources("train")] == ["mine.py"]


def test_volumes_are_normalized_and_neither_moved_nor_resized():
    prepare = ImagePreparation(
        channels=1, mean=(1.0,), std=(2.0,), memory_format=torch.channels_last
    )
    inputs, _ = prepare(torch.ones(2, 1, 3, 4, 5) * 5, torch.zeros(2, dtype=torch.int64), None)
    assert inputs.unique().tolist() == [2]
    assert inputs.is_contiguous(memory_format=torch.channels_last_3d)
    with pytest.raises(ConfigError, match=r"model.input_size=8: volumes are not resized"):
        ImagePreparation(channels=1, size=8)(torch.ones(2, 1, 3, 4, 5), torch.zeros(2), None)
    images, corners = torch.zeros(2, 1, 4, 4, dtype=torch.uint8), torch.zeros(2, dtype=torch.int64)
    with pytest.raises(ConfigError, match=r"dataset.flip=true: images with targets that are neit"):
        ImagePreparation(1, flip=True)(images, torch.zeros(2, 5, 4, 4), corners)
    with pytest.raises(ConfigError, match=r"dataset.flip=true: its items are not moved"):
        item("points", flip=True).prepare()
