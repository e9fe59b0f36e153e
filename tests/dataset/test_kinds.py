"""dataset=mapped: items of several inputs and targets, of any shape and dtype, and bad ones."""

from typing import Any

import numpy as np
import pytest
import torch

from ninefold.config import data
from ninefold.dataset.cache import make, reader
from ninefold.dataset.layout import Layout
from ninefold.dataset.loader import HostSource
from ninefold.dataset.mapped import Mapped
from ninefold.dataset.preparation import ImagePreparation
from ninefold.dataset.resident import Resident
from ninefold.engine.batches import shard
from ninefold.engine.parallel import RankContext
from ninefold.errors import ConfigError, DataError, Failure
from ninefold.tree import leaves
from tests.dataset.kit import ALONE, CPU, epoch
from tests.dataset.mine import made
from tests.faults.refusals import LINE

WORDS = [["ids", "mask"], "label"]


def items(kind: str, odd_kind: str | None = None, **more: Any) -> Mapped:
    """A dataset of items of a kind, of which number 17 may be of another."""
    odd = {} if odd_kind is None else {"odd": 17, "odd_kind": odd_kind}
    node = {"_target_": "tests.dataset.mine.Item", "kind": kind, **odd}
    return Mapped(train=node, test=node, **more)


def batches(dataset: Mapped, context: RankContext = ALONE) -> list[Any]:
    source = HostSource(dataset.load("train"))
    return epoch(source, ImagePreparation(channels=None), context, size=12)


def evaluated(dataset: Mapped, count: int = 2) -> tuple[Any, Any]:
    """The first examples of the training set, as an evaluation has them."""
    source = HostSource(dataset.load("train").first(count))
    return next(shard(source, count, ImagePreparation(channels=None), ALONE))


def test_inputs_keep_their_structure_shape_and_dtype():
    rows = np.array([3, 1])
    found = items("image and row").load("train")
    assert {k: (v[rows].dtype, v.shape) for k, v in found.inputs.items()} == {
        "image": (np.uint8, (48, 3, 8, 8)),
        "row": (np.float32, (48, 6)),
    }
    inputs, targets = evaluated(items("image and row"))
    assert inputs["image"].dtype == torch.float32
    image, row = made("image and row", 1)[0].values()
    assert torch.equal(inputs["image"][1], torch.from_numpy(image) / 255)
    assert torch.equal(inputs["row"][1], row)
    assert targets.dtype == torch.int64
    words = items("words", keys=WORDS).load("train").inputs
    assert [words[key][rows].dtype for key in ("ids", "mask")] == [np.int64, np.bool_]
    pair = items("pair").load("train")
    assert isinstance(pair.inputs, tuple)
    assert pair.targets["sum"].shape == (48,)


def test_the_order_of_keys_in_an_item_does_not_matter():
    one, other = (batches(items("features", kind)) for kind in (None, "other order"))
    for (some, _), (more, _) in zip(one, other, strict=True):
        assert list(more) == ["x_cont", "x_cat"]
        assert all(torch.equal(some[key], more[key]) for key in some)


def test_an_item_alone_is_its_own_target():
    for inputs, targets in batches(items("alone")):
        assert targets is inputs
        assert inputs.shape == (12, 6)


def test_the_first_item_says_the_shape_and_the_class_its_number_of_classes():
    job = {"_target_": "ninefold.dataset.mapped.Mapped", "_recursive_": False, "classes": None,
           "train": items("pair").train, "test": items("pair").train, "shape": None}  # fmt: skip
    *_, found = data.prepare(job, "mapped", None)
    assert found == {"shape": [[6], [6]]}
    with pytest.raises(ConfigError, match=r"null: dataset=mapped cannot count .* task.classes ask"):
        data.prepare(job, "mapped", "task.classes")
    digits = {"_target_": "tests.dataset.mine.Digits", "count": 50}
    *_, found = data.prepare({**job, "train": digits, "test": digits}, "mapped")
    assert found == {"shape": [8, 8, 1], "classes": 10}
    assert items("hwc").item_shape() == [3, 6, 4]


@pytest.mark.parametrize(
    ("kind", "count"),
    [
        ("multi-hot", 5), ("labels", 3), ("masks of labels", 3), ("features", 3),
        ("next tokens", None), ("points", None), ("table", None),
    ],
)  # fmt: skip
def test_a_target_of_labels_or_numbers_says_how_many_and_one_of_tokens_does_not(kind, count):
    assert items(kind).count_classes() == count


def test_keys_count_the_places_of_inputs_and_target_in_longer_tuples():
    first, second, total = made("three in a row", 5)
    both = items("three in a row", keys=[[1, 0], 2]).load("train")
    row = np.array([5])
    assert isinstance(both.inputs, tuple)
    assert np.array_equal(both.inputs[0][row][0], second)
    assert np.array_equal(both.inputs[1][row][0], first)
    assert both.targets[row] == total
    alone = items("labeled", keys=[0])
    alone.prepare()
    assert torch.equal(*evaluated(alone))


IMAGE = {"shape": (3, 6, 4), "classes": 10}
ODD: list[tuple[str, str, str]] = [
    ("features", "less", "the input of item 17 is a dict of x_cont; item 0 has"),
    ("features", "table", "the input of item 17 is one value; item 0 has a dict"),
    ("table", "features", "the input of item 17 is a dict of x_cont, x_cat; item 0 has"),
    ("features", "longer", "the x_cont of item 17 is float32 [7]; item 0 has float32 [6];"),
    ("features", "float categories", "the x_cat of item 17 is float32 [2]; item 0 has int64 [2];"),
    ("features", "int target", "the target of item 17 is int64 [2]; item 0 has float32 [3]"),
    ("table", "other target", "the target of item 17 is float32 [2]; item 0 has float32 []"),
    ("hwc", "other shape", "the input of item 17 is uint8 [6, 3, 3]; item 0 has uint8 [3, 6, 4]"),
    ("hwc", "no target", "the target of item 17 is float32 [0]; item 0 has int64 []"),
    ("hwc", "three", "item 17 has 3 values; (input, target) is taken; set dataset.keys"),
    ("hwc", "ragged", "the input of item 17 is no array (ValueError: setting an array"),
    ("hwc", "palette", "the input of item 17 is a PIL image of mode P; L and RGB are allowed;"),
    ("hwc", "grad", "the input of item 17 is no array (RuntimeError: Can't call numpy() on T"),
    ("hwc", "large mask", "mask of item 17 has the value 12 in 24 pixels; 0 to 9 and ignore=255 "
     "are allowed; set dataset.classes=13 or dataset.ignore=12"),
    ("hwc", "mapping", "item 17 is a mapping; it has image, label, name; set dataset.keys="),
    ("mapping", "no label", "item 17 has no label; it has image; correct dataset.keys"),
    ("hwc", "exit", "item 17 raised SystemExit: 3; "),
    ("hwc", "large class", "item 17 of dataset.train has the class 12; 0 to 9 are allowed"),
]  # fmt: skip


@pytest.mark.parametrize(("kind", "odd", "expected"), ODD, ids=lambda text: text[:20])
def test_an_item_unlike_the_first_is_named(kind, odd, expected):
    keys = {"words": WORDS, "mapping": ["image", "label"]}.get(kind)
    found = items(kind, odd, keys=keys, **(IMAGE if kind in ("hwc", "mapping") else {}))
    with pytest.raises(Failure) as caught:
        leaves(found.load("train").inputs)[0][np.arange(16, 20)]
    field = "dataset.train=tests.dataset.mine.Item"
    if odd.endswith(" class"):
        field = "dataset.classes=10"
    assert str(caught.value).startswith(f"error: {field}: {expected}")
    assert LINE.fullmatch(str(caught.value))
    assert caught.value.code == 4


@pytest.mark.parametrize(
    ("kind", "more", "expected"),
    [
        ("empty dict", {}, "the input of item 0 is a dict; a PIL image, an array"),
        ("words", {}, "item 0 is a mapping; it has ids, mask, label, name; set dataset.keys="),
        ("table", {"mean": [0.5], "std": [1]}, r"an item's input is float32 \[6\];"),
        ("table", {"shape": [7]}, r"the input of item 0 is float32 \[6\]; dataset.shape has \[7\]"),
        ("pair", {"shape": [[6], [6], [6]]}, "is a tuple of 2; dataset.shape has a tuple of 3;"),
        ("words", {"keys": [["ids", "masks"], "label"]}, "item 0 has no masks; it has ids, mask,"),
        ("three in a row", {}, r"item 0 has 3 values; .* set dataset.keys to the places"),
        ("three in a row", {"keys": [["a", "b"], "c"]}, "item 0 has no keys; it is a tuple of 3;"),
        ("labeled", {"keys": ["image", "label"]}, "no keys; .*; leave dataset.keys out, or gi"),
        ("alone", {"keys": ["image"]}, "item 0 has no keys; it is a Tensor;"),
        ("deep", {}, "item 0 is nested more than 32 deep, or contains itself; it is a tuple of 2"),
        ("deep dict", {}, "item 0 is nested more than 32 deep"),
        ("in itself", {}, "item 0 is nested more than 32 deep, or contains itself"),
    ],
)  # fmt: skip
def test_what_does_not_go_with_the_items_is_one_line(kind, more, expected):
    with pytest.raises((ConfigError, DataError), match=expected):
        items(kind, **more).prepare()


@pytest.mark.parametrize(
    ("item", "keys", "expected"),
    [
        (object(), None, "item 0 has no target; .* need a DataLoader whose collate_fn"),
        ({"text": "a", "label": 1}, ["text", "label"], "item 0 is a str; .*; turn text into numb"),
    ],
)
def test_items_that_are_no_numbers_are_refused_with_a_way_to_make_them_some(item, keys, expected):
    with pytest.raises(DataError, match=expected):
        Layout("dataset", "list", keys=keys, as_returned=True).of_first(item)


def test_a_set_with_more_items_than_can_be_shuffled_is_one_line():
    node = {"_target_": "tests.dataset.mine.Endless", "kind": "table"}
    with pytest.raises(DataError, match=rf"it has {2**62} items; 1 to {2**32} can be shuffled;"):
        Mapped(train=node, test=node).prepare()


def test_several_arrays_are_cached_on_disk_and_kept_on_a_device(tmp_path):
    dataset = items("features", cache="disk", cache_dir=str(tmp_path), shape=None)
    node = {"_target_": "x", "train": dataset.train, "test": dataset.test, "cache": "disk"}
    files = make(dataset, node, 1)
    assert {"train.inputs.npy", "train.inputs1.npy", "train.targets.npy"} <= files.keys()
    cached, rows = reader(dataset, files)("train"), np.array([5, 2])
    expected = dataset.load("train")
    for key in ("x_cont", "x_cat"):
        np.testing.assert_array_equal(cached.inputs[key][rows], expected.inputs[key][rows])
    np.testing.assert_array_equal(cached.targets[rows], expected.targets[rows])
    ((inputs, _),) = Resident.copied(cached, CPU).batches([rows], CPU)
    assert torch.equal(inputs["x_cat"], torch.from_numpy(expected.inputs["x_cat"][rows]))
