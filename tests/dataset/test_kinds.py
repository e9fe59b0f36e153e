"""dataset=mapped: items of several inputs and targets, of any shape and dtype, and bad ones."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from ninefold.config import data
from ninefold.dataset.cache import make, reader
from ninefold.dataset.loader import HostSource
from ninefold.dataset.mapped import Mapped
from ninefold.dataset.preparation import ImagePreparation
from ninefold.dataset.resident import Resident
from ninefold.engine.batches import Batches, shard
from ninefold.engine.parallel import Place
from ninefold.errors import ConfigError, DataError
from ninefold.task.own_loss import OwnLoss
from ninefold.train.trial import Trial
from ninefold.tree import leaves
from tests.dataset import kinds

ALONE = Place(0, 1, torch.device("cpu"))


def items(kind: str, odd_kind: str | None = None, **more: Any) -> Mapped:
    """A dataset of items of a kind, of which number 17 may be of another."""
    odd = {} if odd_kind is None else {"odd": 17, "odd_kind": odd_kind}
    node = {"_target_": "tests.dataset.kinds.Items", "kind": kind, **odd}
    return Mapped(train=node, test=node, **more)


def batches(dataset: Mapped, place: Place = ALONE) -> list[Any]:
    prepare = dataset.preparation(channels=None)
    found = Batches(HostSource(dataset.load("train")), 12, 3, prepare, place)
    return list(found.epoch(0, 0, lambda: None, lambda phase: None))


def test_inputs_keep_their_structure_shape_and_dtype() -> None:
    rows = np.array([3, 1])
    found = items("image and row").load("train")
    assert {k: (v[rows].dtype, v.shape) for k, v in found.inputs.items()} == {
        "image": (np.uint8, (48, 3, 8, 8)),
        "row": (np.float32, (48, 6)),
    }
    inputs, targets = next(shard(HostSource(found), 2, ImagePreparation(channels=None), ALONE))
    assert inputs["image"].dtype == torch.float32
    assert torch.equal(
        inputs["image"][1], torch.from_numpy(kinds.made("image and row", 1)[0]["image"]) / 255
    )
    assert torch.equal(inputs["row"][1], kinds.made("image and row", 1)[0]["row"])
    assert targets.dtype == torch.int64
    words = items("words", keys=[["ids", "mask"], "label"]).load("train").inputs
    assert [words[key][rows].dtype for key in ("ids", "mask")] == [np.int64, np.bool_]
    pair = items("pair").load("train")
    assert isinstance(pair.inputs, tuple)
    assert pair.targets["sum"].shape == (48,)


def test_the_order_of_keys_in_an_item_does_not_matter() -> None:
    one, other = (batches(items("features", kind)) for kind in (None, "other order"))
    for (some, _), (more, _) in zip(one, other, strict=True):
        assert list(more) == ["x_cont", "x_cat"]
        assert all(torch.equal(some[key], more[key]) for key in some)


def test_two_processes_have_the_rows_of_one_in_every_tensor() -> None:
    dataset = items("pair")
    whole, *parts = (
        batches(dataset, p) for p in (ALONE, Place(0, 2, ALONE.device), Place(1, 2, ALONE.device))
    )
    for batch, *some in zip(whole, *parts, strict=True):
        for rank, part in enumerate(some):
            for all_rows, rows in zip(leaves(batch), leaves(part), strict=True):
                assert torch.equal(all_rows[rank::2], rows)


def test_an_item_alone_is_its_own_target() -> None:
    for inputs, targets in batches(items("alone")):
        assert targets is inputs
        assert inputs.shape == (12, 6)


def test_the_first_item_says_the_shape_and_the_class_its_number_of_classes() -> None:
    job = {"_target_": "ninefold.dataset.mapped.Mapped", "_recursive_": False, "classes": None,
           "train": items("pair").train, "test": items("pair").train, "shape": None}  # fmt: skip
    *_, found = data.prepare(job, "mapped", None)
    assert found == {"shape": [[6], [6]]}
    with pytest.raises(
        ConfigError, match=r"null: dataset=mapped cannot count .* task.classes asks"
    ):
        data.prepare(job, "mapped", "task.classes")
    digits = {"_target_": "tests.dataset.mine.Digits", "count": 50}
    *_, found = data.prepare({**job, "train": digits, "test": digits}, "mapped")
    assert found == {"shape": [8, 8, 1], "classes": 10}
    assert items("alone").item_shape() == [6]
    image = {"_target_": "tests.dataset.mine.Item", "kind": "hwc"}
    assert Mapped(train=image, test=image).item_shape() == [3, 6, 4]


def test_keys_count_the_places_of_inputs_and_target_in_longer_tuples() -> None:
    first, second, total = kinds.made("three in a row", 5)
    both = items("three in a row", keys=[[1, 0], 2]).load("train")
    assert isinstance(both.inputs, tuple)
    assert torch.equal(torch.from_numpy(both.inputs[0][np.array([5])][0]), second)
    assert torch.equal(torch.from_numpy(both.inputs[1][np.array([5])][0]), first)
    assert both.targets[np.array([5])] == total
    alone = items("labeled", keys=[0])
    alone.prepare()
    inputs, targets = next(
        shard(HostSource(alone.load("train")), 2, ImagePreparation(channels=None), ALONE)
    )
    assert torch.equal(inputs, targets)


@pytest.mark.parametrize(
    ("kind", "odd", "expected"),
    [
        ("features", "less", "the input of item 17 is a dict of x_cont; dataset.shape"),
        ("features", "table", "the input of item 17 is one value; dataset.shape has a dict"),
        ("table", "features", "the input of item 17 is a dict of x_cont, x_cat; dataset.shape"),
        ("pair", "three in a tuple", "the input of item 17 is a tuple of 3; dataset.shape has a"),
        ("features", "longer", "x_cont of item 17 is [7], item 0 [6]; all have one shape;"),
        ("features", "floats", "x_cat of item 17 is float32, item 0 int64; all have one dtype;"),
        ("features", "text inside", "the x_cat of item 17 is a str; a PIL image, an array"),
        ("features", "none inside", "the x_cat of item 17 is a NoneType; a PIL image, an array"),
        ("features", "int target", "the target of item 17 is int64 [2]; that of item 0 is"),
        ("alone", "labeled", "item 17 has a target; item 0 has none; return (input,"),
        ("labeled", "alone", "item 17 has no target; item 0 has one;"),
        ("table", "other target", "the target of item 17 is float32 [2]; that of item 0"),
        ("table", "another target", "the target of item 17 is a dict of sum; item 0 has"),
        ("words", "table", "item 17 has 2 values"),
    ],
)  # fmt: skip
def test_an_item_unlike_the_first_is_named(kind: str, odd: str, expected: str) -> None:
    keys = [["ids", "mask"], "label"] if kind == "words" else None
    if (kind, odd) == ("words", "table"):
        expected = "the input of item 17 is one value; dataset.shape has a dict of ids, mask;"
    found = items(kind, odd, keys=keys).load("train")
    with pytest.raises(DataError) as caught:
        leaves(found.inputs)[0][np.arange(16, 20)]
    line = str(caught.value)
    assert line.startswith(f"error: dataset.train=tests.dataset.kinds.Items: {expected}")
    assert "\n" not in line


@pytest.mark.parametrize(
    ("kind", "expected"),
    [
        ("empty dict", "the input of item 0 is a dict with the keys (none); names are allowed"),
        ("numbers as keys", "the input of item 0 is a dict with the keys 1; names are allowed"),
        ("no values", "item 0 is [0]; it has no values"),
        ("words", "item 0 is a mapping; it has ids, mask, label, name; set dataset.keys="),
    ],
)
def test_a_first_item_that_cannot_be_an_example_is_one_line(kind: str, expected: str) -> None:
    with pytest.raises(DataError) as caught:
        items(kind).prepare()
    assert str(caught.value).startswith(
        f"error: dataset.train=tests.dataset.kinds.Items: {expected}"
    )


@pytest.mark.parametrize(
    ("kind", "more", "expected"),
    [
        ("table", {"mean": [0.5], "std": [1]}, r"an item's input is float32 \[6\];"),
        ("features", {"mean": [0.5], "std": [1]}, "an item's input is a dict of x_cont, x_cat;"),
        ("table", {"shape": [7]}, r"item 0 is \[6\], dataset.shape \[7\]; all have one shape"),
        ("table", {"shape": {"x": [6]}}, "is one value; dataset.shape has a dict of x;"),
        ("pair", {"shape": [[6], [6], [6]]}, "is a tuple of 2; dataset.shape has a tuple of 3;"),
        ("features", {"keys": ["x_cont", "y"]}, None),
        ("words", {"keys": [["ids", "masks"], "label"]}, "item 0 has no masks; it has ids, mask,"),
        ("three in a row", {}, r"item 0 has 3 values; .* set dataset.keys to the places"),
        ("three in a row", {"keys": [[0, 1], 3]}, "item 0 has no 3; it has 3 values; correct"),
        ("three in a row", {"keys": ["x", 2]}, "item 0 has no x; it has 3 values; correct"),
    ],
)  # fmt: skip
def test_what_does_not_go_with_the_items_is_one_line(
    kind: str, more: dict[str, Any], expected: str | None
) -> None:
    if expected is None:
        items(kind, **more).prepare()  # items that are pairs need no keys
        return
    with pytest.raises((ConfigError, DataError), match=expected):
        items(kind, **more).prepare()


@pytest.mark.parametrize(
    ("kind", "model", "expected"),
    [
        ("features", kinds.Words(), r"it does not take what an item has .*takes ids, mask; return"),
        ("pair", kinds.Words(), None),
        ("pair", kinds.Line(6), r"it does not take what an item has .*inputs are 2, the network"),
        ("words", kinds.Features(), r"inputs are \['ids', 'mask'\], the network takes x_cont"),
    ],
)
def test_a_network_that_does_not_take_the_inputs_is_one_line(
    kind: str, model: nn.Module, expected: str | None
) -> None:
    keys = [["ids", "mask"], "label"] if kind == "words" else None
    found = items(kind, keys=keys).load("train").first(2)
    trial = Trial(model, None, "own", OwnLoss(nn.MSELoss()), "own_loss", None, ALONE)
    with pytest.raises(
        ConfigError, match=expected or "fails in evaluation mode on examples of"
    ) as e:
        trial.evaluation(found, ImagePreparation(channels=None), 2)
    assert "\n" not in str(e.value)


def test_several_arrays_are_cached_on_disk_and_kept_on_a_device(tmp_path: Any) -> None:
    dataset = items("features", cache="disk", cache_dir=str(tmp_path), shape=None)
    node = {"_target_": "x", "train": dataset.train, "test": dataset.test, "cache": "disk"}
    files = make(dataset, node, 1)
    assert files is not None
    assert {"train.inputs.npy", "train.inputs1.npy", "train.targets.npy"} <= files.keys()
    cached, rows = reader(dataset, files)("train"), np.array([5, 2])
    expected = dataset.load("train")
    for key in ("x_cont", "x_cat"):
        np.testing.assert_array_equal(cached.inputs[key][rows], expected.inputs[key][rows])
    np.testing.assert_array_equal(cached.targets[rows], expected.targets[rows])
    resident = Resident.copied(cached, torch.device("cpu"))
    ((inputs, _),) = resident.batches([rows], torch.device("cpu"))
    assert torch.equal(inputs["x_cat"], torch.from_numpy(expected.inputs["x_cat"][rows]))
