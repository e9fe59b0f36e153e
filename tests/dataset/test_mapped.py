"""dataset=mapped: what default_collate makes of the items of any Dataset class, with the same draws
for the same seed, epoch and item; and one line for what it makes nothing of."""

import os
import random
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import default_collate

from ninefold.config import data
from ninefold.dataset import items, train_and_val
from ninefold.dataset.cache import make, notes_of, reader
from ninefold.dataset.loader import HostSource
from ninefold.dataset.mapped import VAL_IS_RANDOM, Mapped
from ninefold.dataset.preparation import ImagePreparation
from ninefold.dataset.resident import Resident
from ninefold.engine.batches import shard
from ninefold.errors import ConfigError, DataError, Failure
from ninefold.result import AS_FLOAT32
from ninefold.tree import leaves
from tests.dataset import mine
from tests.dataset.kit import ALONE, CPU, epoch
from tests.dataset.mine import made
from tests.faults.refusals import LINE

MINE = "tests.dataset.mine"
WORDS = [["ids", "mask"], "label"]
Batch = tuple[Any, Any]


def item(kind: str, **more: Any) -> Mapped:
    """A dataset of items of a kind, in both splits; number `odd` may be of another."""
    odd = {name: more.pop(name) for name in ("odd", "odd_kind") if name in more}
    node = {"_target_": f"{MINE}.Item", "kind": kind, **odd}
    return Mapped(train=node, test=node, **more)


def noise(**more: Any) -> Mapped:
    node = {"_target_": f"{MINE}.Digits", "count": 50}
    return Mapped(train=node, test=node, shape=(1, 8, 8), **more)


def batch(dataset: Mapped, *rows: int, seed: int = 0, epoch: int = 0) -> Batch:
    """The training examples of these numbers, as training reads them."""
    examples = dataset.load("train").in_epoch(seed, epoch)
    (found,) = HostSource(examples).batches([np.array(rows)], CPU)
    return found


def evaluated(dataset: Mapped, count: int = 2, **options: Any) -> Batch:
    """The first training examples, as an evaluation has them."""
    prepare = ImagePreparation(channels=None, **options)
    return next(shard(HostSource(dataset.load("train").first(count)), count, prepare, ALONE))


def test_a_configured_class_is_built_once_for_each_split_of_a_command(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)  # another command's data would be another
    built: list[int] = []
    build = mine.Item.__init__
    monkeypatch.setattr(
        mine.Item, "__init__", lambda *given, **more: (built.append(1), build(*given, **more))[1]
    )
    node = {"_target_": f"{MINE}.Item", "kind": "image"}
    job = {"_target_": "ninefold.dataset.mapped.Mapped", "_recursive_": False, "classes": 5,
           "train": node, "test": node, "shape": [3, 6, 4]}  # fmt: skip
    for _ in range(3):
        data.prepare(job, "mapped")
    assert len(built) == 2
    data.prepare({**job, "classes": 6}, "mapped")
    assert len(built) == 4


@pytest.mark.parametrize(
    "kind", ["image", "tensor", "floats", "mask", "points", "labels", "table", "features", "pair"]
)
def test_a_batch_is_what_default_collate_makes_in_a_dtype_that_networks_take(kind):
    dataset = item(kind)
    dataset.prepare()
    wanted = leaves(default_collate([made(kind, number) for number in (7, 3)]))
    for found, plain in zip(leaves(batch(dataset, 7, 3)), wanted, strict=True):
        assert torch.equal(found, plain.to(found.dtype))
        bytes_of_images = plain.dtype == torch.uint8 and plain.ndim > 1
        dtype = torch.float32 if plain.is_floating_point() else torch.int64
        assert found.dtype == (plain.dtype if bytes_of_images else dtype)


def test_images_among_several_inputs_are_prepared_and_the_others_stay():
    inputs, targets = evaluated(item("image and row"))
    image, row = made("image and row", 1)[0].values()
    assert torch.equal(inputs["image"][1], torch.from_numpy(image) / 255)
    assert torch.equal(inputs["row"][1], row)
    assert targets.dtype == torch.int64
    mixed = item("features", odd=1, odd_kind="other order")
    for rows in ((0, 1), (1, 0)):
        found = batch(mixed, *rows)[0]
        assert torch.equal(found["x_cont"][rows.index(1)], made("features", 1)[0]["x_cont"])


def test_an_item_alone_is_its_own_target():
    for dataset in (item("alone"), item("no target")):
        inputs, targets = evaluated(dataset)
        assert targets is inputs


def test_the_first_item_says_the_shape_and_the_class_its_number_of_classes():
    job = {"_target_": "ninefold.dataset.mapped.Mapped", "_recursive_": False, "classes": None,
           "train": item("pair").train, "test": item("pair").train, "shape": None}  # fmt: skip
    *_, found = data.prepare(job, "mapped", None)
    assert found == {"shape": [[6], [6]]}
    with pytest.raises(ConfigError, match=r"null: dataset=mapped cannot count .* task.classes ask"):
        data.prepare(job, "mapped", "task.classes")
    digits = {"_target_": "tests.dataset.mine.Digits", "count": 50}
    job |= {"train": digits, "test": digits}
    *_, found = data.prepare(job, "mapped")
    assert found == {"shape": [1, 8, 8]}  # a regression on integers has no classes
    *_, found = data.prepare(job, "mapped", "task.classes")
    assert found == {"shape": [1, 8, 8], "classes": 10}


@pytest.mark.parametrize(
    ("kind", "count"),
    [
        ("multi-hot", 5), ("labels", 3), ("masks of labels", 3), ("features", 3),
        ("next tokens", None), ("points", None), ("table", None), ("mask", None), ("alone", None),
    ],
)  # fmt: skip
def test_a_target_of_labels_or_numbers_says_how_many_and_one_of_tokens_does_not(kind, count):
    assert item(kind).count_classes() == count


def test_keys_name_inputs_and_target_in_mappings_and_count_them_in_longer_tuples():
    ids, label = batch(item("words", keys=WORDS), 5)
    assert [ids[key].dtype for key in ("ids", "mask")] == [torch.int64, torch.bool]
    assert label.tolist() == [made("words", 5)["label"]]
    first, second, total = made("three in a row", 5)
    (one, other), target = batch(item("three in a row", keys=[[1, 0], 2]), 5)
    assert torch.equal(one[0], second)
    assert torch.equal(other[0], first)
    assert target[0] == total
    alone = item("labeled", keys=[0])
    alone.prepare()
    assert torch.equal(*evaluated(alone))


def test_floats_are_taken_as_they_are_with_mean_and_std_alone():
    inputs, _ = evaluated(item("floats"), mean=(0.5, 0.4, 0.3), std=(2.0, 1.0, 0.5))
    expected = np.stack([made("floats", n)[0] for n in (0, 1)])
    mean, std = (np.reshape(v, (3, 1, 1)) for v in ([0.5, 0.4, 0.3], [2.0, 1.0, 0.5]))
    np.testing.assert_allclose(inputs.numpy(), (expected - mean) / std, rtol=1e-6, atol=1e-6)


def test_a_mask_may_hold_class_numbers_and_the_number_of_void():
    _, found = batch(item("void mask", classes=3), *range(40))
    assert found.unique().tolist() == [0, 1, 2, 255]
    item("mask", classes=5, ignore=None).prepare()
    with pytest.raises(DataError, match="mask of item 0 has the value 255 in 6 pixels; 0 to 2 are"):
        item("void mask", classes=3, ignore=None).prepare()


def test_what_a_crop_adds_to_a_mask_is_void_and_needs_a_number() -> None:
    cropped = item("mask", classes=5, crop=1)
    cropped.prepare()
    assert cropped.preparation(channels=None, crop=1).outside == 255
    with pytest.raises(ConfigError, match=r"dataset.crop=1: pixels outside .*; set dataset.ignore"):
        item("mask", classes=5, crop=1, ignore=None).prepare()


def test_splits_whose_classes_have_other_names_or_places_are_refused():
    def splits(train: list[str], test: list[str], **more: Any) -> Mapped:
        own = ({"_target_": f"{MINE}.Named", "classes": names} for names in (train, test))
        return Mapped(train=next(own), test=next(own), **more)

    splits(["ant", "bird", "cat"], ["ant", "bird", "cat"]).prepare()
    with pytest.raises(DataError, match=r"training and test classes differ; only in train: bird;"):
        splits(["ant", "bird", "cat"], ["ant", "cat"]).prepare()
    with pytest.raises(DataError, match=r"classes differ; they are in another order; give both"):
        splits(["ant", "cat"], ["cat", "ant"]).prepare()
    for more in ({"classes": 2}, {"keys": [0]}):  # said on purpose, or no targets at all
        splits(["ant", "cat"], ["cat", "ant"], **more).prepare()


def test_masks_of_small_objects_beside_void_are_masks_of_classes():
    rare = {"_target_": f"{MINE}.Rare", "count": 100}
    Mapped(train=rare, test=rare, classes=2).prepare()


def test_black_and_white_masks_are_not_taken_for_void():
    said = r"48 masks hold the values 0, 255 only; 255 is ignored .*; divide black and white masks"
    with pytest.raises(DataError, match=said):
        item("black and white", classes=2).prepare()
    with pytest.raises(DataError, match=r"the value 255 in .*; 0 to 1 are allowed; divide black"):
        item("black and white", classes=2, ignore=None).prepare()


def test_an_item_has_the_same_draws_for_one_seed_and_epoch_and_others_in_the_next():
    rows = range(50)
    assert len({tuple(words) for words in items.seeds(0, 1, np.arange(50))}) == 50
    first, _ = batch(noise(), *rows, epoch=1)
    again, _ = batch(noise(limit=20), 13, epoch=1)  # another batch, another limit
    assert torch.equal(again[0], first[13])
    for seed, number in ((0, 2), (1, 1)):
        other, _ = batch(noise(), *rows, seed=seed, epoch=number)
        assert (other != first).flatten(1).any(1).all()
    train, val = train_and_val(noise(val=0.2), seed=0)
    assert val is not None
    ((inside, _),) = HostSource(train.in_epoch(0, 1)).batches([np.array([5])], CPU)
    assert any(torch.equal(inside[0], image) for image in first)


def test_an_item_is_read_once_for_its_input_and_its_target(monkeypatch):
    seen: list[int] = []
    read_item = mine.Digits.__getitem__
    source = HostSource(noise().load("train"))
    monkeypatch.setattr(
        mine.Digits, "__getitem__", lambda self, n: (seen.append(n), read_item(self, n))[1]
    )
    epoch(source, ImagePreparation(channels=1), size=10)
    assert sorted(seen) == list(range(50))


def test_reading_leaves_the_generators_of_the_process_as_they_were():
    torch.manual_seed(5), np.random.seed(5), random.seed(5)
    expected = torch.rand(3).tolist(), np.random.rand(3).tolist(), random.random()
    torch.manual_seed(5), np.random.seed(5), random.seed(5)
    batch(noise(), 0, 1, 2)
    assert (torch.rand(3).tolist(), np.random.rand(3).tolist(), random.random()) == expected


def test_several_tensors_are_cached_on_disk_and_kept_on_a_device(tmp_path, capfd):
    dataset = item("features", cache="disk", cache_dir=str(tmp_path))
    dataset.prepare()
    node = {"_target_": "x", "train": dataset.train, "test": dataset.test, "cache": "disk"}
    files = make(dataset, node, 1)
    assert capfd.readouterr().err.startswith("cached x: 96 examples, ")
    assert {"train.inputs.npy", "train.inputs1.npy", "train.targets.npy"} <= files.keys()
    cached, rows = reader(dataset, files)("train"), np.array([5, 2])
    expected, targets = batch(dataset, 5, 2)
    for key in ("x_cont", "x_cat"):
        np.testing.assert_array_equal(cached.inputs[key][rows], expected[key])
    np.testing.assert_array_equal(cached.targets[rows], targets)
    ((inputs, _),) = Resident.copied(cached, CPU).batches([rows], CPU)
    assert torch.equal(inputs["x_cat"], expected["x_cat"])


def test_a_cached_dataset_tells_too_that_its_float64_became_float32(tmp_path):
    dataset, again = (item("floats", cache="disk", cache_dir=str(tmp_path)) for _ in range(2))
    dataset.prepare()
    files = make(dataset, {"_target_": "x"}, 1)
    assert notes_of(again, files) == notes_of(dataset, None) == [AS_FLOAT32]


@pytest.mark.parametrize("name", ["Digits", "RandomTargets"])
def test_a_class_with_random_transforms_is_not_cached(name):
    drawn = node(name)
    with pytest.raises(DataError, match=r"cache=disk, but item 0 is another when it is read again"):
        Mapped(train=drawn, test=drawn, cache="disk").prepare()


@pytest.mark.parametrize(
    ("name", "moves", "val", "notes"),
    [
        ("Digits", True, 0.1, [VAL_IS_RANDOM]), ("RandomTargets", False, 0.1, [VAL_IS_RANDOM]),
        ("Digits", False, 0.1, []), ("Digits", True, 0, []),
    ],
)  # fmt: skip
def test_random_transforms_of_a_share_for_validation_are_told(name, moves, val, notes):
    drawn = node(name, moves=moves)
    assert Mapped(train=drawn, test=drawn, val=val).notes == notes


def test_what_a_class_draws_when_it_is_built_is_the_same_before_torch_is_imported(tmp_path):
    own = "import torch\nclass D(list):\n    def __init__(self): super().__init__(torch.rand(3))\n"
    (tmp_path / "drawn.py").write_text(own)
    twice = (
        "import sys\nfrom ninefold.dataset.mapped import Mapped\n"
        "assert 'torch' not in sys.modules\n"
        "print(*(Mapped(train={'_target_': 'drawn.D'})._items('train').data for _ in range(2)))"
    )
    path = os.pathsep.join([str(tmp_path), os.environ.get("PYTHONPATH", "")])
    done = subprocess.run(
        [sys.executable, "-c", twice], env={**os.environ, "PYTHONPATH": path}, text=True,
        capture_output=True, check=True,
    )  # fmt: skip
    first, second = done.stdout.strip("[]\n").split("] [")
    assert first == second


def test_the_sources_of_a_split_are_the_file_of_its_class():
    assert [Path(path).name for path in item("image").sources("train")] == ["mine.py"]


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


NONE = "item 17 makes no batch with item 16; "
ODD: list[tuple[str, str, str]] = [
    ("image", "other shape", f"{NONE}RuntimeError: stack expects each tensor to"),
    ("image", "no target", NONE),
    ("image", "text", "the target of item 17 is of type str; "),
    ("image", "mapping", "item 17 is a mapping; it has image, label, name (text); set"),
    ("image", "three in a row", "item 17 has 3 values; (input, target) is taken; set dataset.k"),
    ("image", "exit", "item 17 raised SystemExit: 3; "),
    ("image", "large class", "item 17 of dataset.train has the class 12; 0 to 9 are allowed"),
    ("mask", "large mask", "mask of item 17 has the value 12 in 24 pixels; 0 to 9 and ignore=255 "
     "are allowed; set dataset.classes=13 or dataset.ignore=12"),
    ("mapping", "no label", "item 17 has no label; it has image; correct dataset.keys"),
    ("features", "less", NONE),
    ("features", "table", NONE),
]  # fmt: skip


@pytest.mark.parametrize(("kind", "odd", "expected"), ODD, ids=lambda text: text[:20])
def test_an_item_unlike_those_before_it_is_named(kind, odd, expected):
    keys = ["image", "label"] if kind == "mapping" else None
    found = item(kind, odd=17, odd_kind=odd, keys=keys, classes=10)
    with pytest.raises(Failure) as caught:
        batch(found, *range(16, 20))
    field = "dataset.classes=10" if odd == "large class" else f"dataset.train={MINE}.Item"
    assert str(caught.value).startswith(f"error: {field}: {expected}")
    assert LINE.fullmatch(str(caught.value))
    assert caught.value.code == 4


@pytest.mark.parametrize(
    ("kind", "more", "expected"),
    [
        ("hwc", {}, r"input of item 0 is \[6, 4, 3\], with channels last; .*; add .*v2\.ToImage"),
        ("pil", {}, r"input of item 0 is of type Image; .*; add the transform v2\.Compose.*To"),
        ("pil mask", {}, r"target of item 0 is of type Image; .*of a mask return torch\.from_nu"),
        ("text", {}, r"target of item 0 is of type str; .*; turn text into numbers, as data"),
        ("list", {}, r"the input_ids of item 0 is of type list; .*with_format\('torch'\)"),
        ("graph", {}, r"input of item 0 is of type Graph; .* a DataLoader whose collate_fn"),
        ("none", {}, "the target of item 0 is of type NoneType; "),
        ("decimal", {}, "item 0 makes no batch; TypeError: default_collate: batch must contain"),
        ("shapeless", {}, "item 0 raised RuntimeError: it has none; "),
        ("empty", {}, "the target of item 0 is empty; .*; leave it out"),
        ("in itself", {}, "item 0 raised RecursionError"),
        ("raises", {}, "item 0 raised KeyError: 'cat'; .*mine.py:"),
        ("words", {}, "item 0 is a mapping; it has ids, mask, label, name .text.; set data"),
        ("words", {"keys": [["ids", "masks"], "label"]}, "item 0 has no masks; it has ids, mask,"),
        ("three in a row", {}, r"item 0 has 3 values; .* set dataset.keys=.*places from 0"),
        ("labeled", {"keys": ["image", "label"]}, "item 0 has no image; it is of type tuple; cor"),
        ("alone", {"keys": ["image"]}, "item 0 has no image; it is of type Tensor;"),
        ("table", {"mean": [0.5], "std": [1]}, r"an item's input is one value of the shape \[6\];"),
        ("table", {"shape": [7]}, r"the input of item 0 is \[6\]; dataset.shape has \[7\]"),
        ("pair", {"shape": [[6], [6], [6]]}, r"\[\[6\], \[6\]\]; dataset.shape has \[\[6\], \[6"),
        ("points", {"flip": True}, "dataset.flip=true: its items are not moved"),
    ],
)  # fmt: skip
def test_what_no_batch_is_made_of_is_one_line_that_says_what_to_do(kind, more, expected):
    with pytest.raises((ConfigError, DataError), match=expected) as caught:
        item(kind, **more).prepare()
    assert LINE.fullmatch(str(caught.value))


def node(target: str, **arguments: Any) -> dict[str, Any]:
    return {"_target_": f"{MINE}.{target}", **arguments}


CLASSES = [
    (None, 2, "dataset.train=null: no class is named"),
    ({"path": "A"}, 2, "dataset.train={'path': 'A'}: no class is named"),
    ({"_target_": "no_such_module.D"}, 2,
     "dataset.train._target_=no_such_module.D: it cannot be imported (No module named"),
    ({"_target_": "broken.D"}, 4, "the import of its module raised ZeroDivisionError: division by"),
    (node("Item"), 4, f"dataset.train={MINE}.Item: its construction raised TypeError: Item."),
    (node("Raising", path="nowhere"), 4,
     f"dataset.train={MINE}.Raising: its construction raised FileNotFoundError: [Errno 2]"),
    (node("Iterable"), 4, f"dataset.train={MINE}.Iterable: Iterable is no map-style dataset"),
    (node("Counted"), 4, f"dataset.train={MINE}.Counted: Counted is no map-style dataset"),
    (node("Numbers"), 4, f"dataset.train={MINE}.Numbers: it has no items"),
    (node("Endless", kind="table"), 4, f"it has {2**62} items; 1 to {2**32} can be shuffled;"),
]  # fmt: skip


@pytest.mark.parametrize(("described", "code", "expected"), CLASSES)
def test_a_class_that_cannot_be_used_is_found_by_the_launcher(
    described, code, expected, tmp_path, monkeypatch
):
    (tmp_path / "broken.py").write_text("print('imported')\n1 / 0\n")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(Failure) as caught:
        Mapped(train=described, test=described).prepare()
    assert LINE.fullmatch(str(caught.value))
    assert expected in str(caught.value)
    assert caught.value.code == code
    if "broken.D" in str(described):
        assert "broken.py:2 in <module>: 1 / 0" in str(caught.value)
