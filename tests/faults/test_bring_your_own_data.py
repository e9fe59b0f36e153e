"""Bad input to dataset=mapped and dataset=hf: one line that names it, and no traceback."""

from __future__ import annotations

import io
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import datasets
import numpy as np
import pytest
from PIL import Image

from ninefold.dataset.mapped import Mapped
from ninefold.errors import Failure
from ninefold.hf import HF
from tests.conftest import ROOT, Shell
from tests.faults.runs import one_after_another

LINE = re.compile(r"error: [^=\s]+=.*: .+; .+; .+")
MINE = "tests.dataset.mine"


def said(failure: Failure, code: int) -> str:
    """The line of a failure, which must have the documented form and exit code."""
    assert LINE.fullmatch(str(failure)), str(failure)
    assert failure.code == code
    return str(failure)


def node(target: str, **arguments: Any) -> dict[str, Any]:
    return {"_target_": f"{MINE}.{target}", **arguments}


# dataset=mapped: items

KEYS = ["image", "label"]
ITEMS = [
    (
        "other shape",
        [],
        "item 17 is [6, 3, 3], item 0 [3, 6, 4]; all have one shape; "
        "channels of images may come first",
    ),
    ("no target", [], "item 17 has no target; item 0 has one"),
    ("alone", [], "item 17 has no target; item 0 has one"),
    ("none", [], "item 17 has no target"),
    ("three", [], "item 17 has 3 values"),
    ("text", [], "the target of item 17 is a str"),
    ("ragged", [], "the input of item 17 is no array"),
    ("int64", [], "item 17 is int64, item 0 uint8; all have one dtype"),
    (
        "palette",
        [],
        "item 17 is a PIL image of mode P; L and RGB are allowed; return image.convert",
    ),
    (
        "grad",
        [],
        "the input of item 17 is no array (Can't call numpy() on Tensor that requires grad",
    ),
    ("floats", [], "item 17 is float32, item 0 uint8"),
    (
        "negative mask",
        [],
        "mask of item 17 has the value -1 in 24 pixels; 0 to 9 and ignore=255 are allowed; correct",
    ),
    (
        "large mask",
        [],
        "mask of item 17 has the value 12 in 24 pixels; 0 to 9 and ignore=255 are allowed; set "
        "dataset.classes=13 or dataset.ignore=12",
    ),
    ("vector", [], "the target of item 17 is int64 [1]; that of item 0 is int64 []"),
    ("mask", [], "the target of item 17 is uint8 [6, 4]; that of item 0 is int64 []"),
    ("mapping", [], "item 17 is a mapping; it has image, label, name; set dataset.keys="),
    ("no label", KEYS, "item 17 has no label; it has image; correct dataset.keys"),
    ("exit", [], "item 17 raised SystemExit: 3; "),
]


@pytest.mark.parametrize(("kind", "keys", "expected"), ITEMS, ids=[kind for kind, *_ in ITEMS])
def test_an_item_unlike_what_is_taken_is_named_by_its_number(
    kind: str, keys: list[str], expected: str
) -> None:
    described = node("Item", kind="hwc", odd=17, odd_kind=kind)
    shape = (3, 6, 4)
    dataset = Mapped(train=described, test=described, keys=keys or None, shape=shape, classes=10)
    found = dataset.load("train")
    with pytest.raises(Failure) as caught:
        found.inputs[np.arange(16, 20)]
    line = said(caught.value, 4)
    assert line.startswith(f"error: dataset.train={MINE}.Item: {expected}")


@pytest.mark.parametrize(
    ("kind", "expected"),
    [("large class", "item 17 of dataset.train has the class 12; 0 to 9 are allowed"),
     ("negative class", "item 17 of dataset.train has the class -1")],
)  # fmt: skip
def test_a_class_that_does_not_exist_is_refused(kind: str, expected: str) -> None:
    described = node("Item", kind="hwc", odd=17, odd_kind=kind)
    found = Mapped(train=described, test=described, shape=(3, 6, 4), classes=10).load("train")
    with pytest.raises(Failure) as caught:
        found.targets[np.arange(16, 20)]
    assert said(caught.value, 4).startswith(f"error: dataset.classes=10: {expected}")


def test_an_error_of_the_users_class_names_its_file_line_and_code() -> None:
    described = node("Item", kind="hwc", odd=17, odd_kind="raises")
    found = Mapped(train=described, test=described, shape=(3, 6, 4)).load("test")
    with pytest.raises(Failure) as caught:
        found.inputs[np.arange(20)]
    line = said(caught.value, 4)
    file = ROOT / "tests" / "dataset" / "mine.py"
    number = next(
        n for n, text in enumerate(file.read_text().splitlines(), 1) if '{}["cat"]' in text
    )
    assert f"dataset.test={MINE}.Item: item 17 raised KeyError: 'cat'; {file}:{number} in" in line
    assert line.endswith('"raises": lambda: {}["cat"],; correct it; traceback in run.log')


# dataset=mapped: classes

CLASSES = [
    (None, 2, "dataset.train=null: no class is named"),
    ({"path": "A"}, 2, "dataset.train={'path': 'A'}: no class is named"),
    ({"_target_": "no_such_module.D"}, 2,
     "dataset.train._target_=no_such_module.D: it cannot be imported (No module named"),
    (node("Digit"), 2, f"dataset.train._target_={MINE}.Digit: it cannot be imported"),
    (node("Item"), 4, f"dataset.train={MINE}.Item: its construction raised TypeError: Item."),
    (node("Raising", path="nowhere"), 4,
     f"dataset.train={MINE}.Raising: its construction raised FileNotFoundError: [Errno 2]"),
    (node("Iterable"), 4, f"dataset.train={MINE}.Iterable: Iterable is no map-style dataset"),
    (node("Numbers"), 4, f"dataset.train={MINE}.Numbers: it has no items"),
]  # fmt: skip


@pytest.mark.parametrize(("described", "code", "expected"), CLASSES)
def test_a_class_that_cannot_be_used_is_found_by_the_launcher(
    described: Any, code: int, expected: str
) -> None:
    with pytest.raises(Failure) as caught:
        Mapped(train=described, test=described).prepare()
    assert expected in said(caught.value, code)
    assert "run.log" not in str(caught.value), "no run has a folder yet"


def test_a_mapped_dataset_that_fails_ends_its_run_with_one_line_and_the_traceback_in_the_log(
    shell: Shell, tmp_path: Path
) -> None:
    (tmp_path / "broken.py").write_text("print('imported')\n1 / 0\n")
    fine = "dataset.test={_target_: tests.dataset.mine.Item, kind: hwc}"
    odd = "{_target_: tests.dataset.mine.Item, kind: hwc, odd: 17, odd_kind: raises}"
    job = ["dataset=mapped", fine, "dataset.shape=[3,6,4]", "dataset.classes=10", "batch_size=10",
           "device=cpu"]  # fmt: skip
    commands = [
        ["train.py", *job, f"dataset.train={odd}", "hydra.run.dir=run"],
        ["train.py", *job, f"dataset.train={odd}", "parallel=ddp", "launch.cpu_processes=2",
         "hydra.run.dir=two"],
        ["train.py", *job, "dataset.train={_target_: broken.D}", "hydra.run.dir=three"],
        ["train.py", *job, f"dataset.train={odd}", "dataset.keys=5", "hydra.run.dir=four"],
        ["train.py", *job, "dataset.train=[1]", "hydra.run.dir=five"],
    ]  # fmt: skip
    env = {"PYTHONPATH": str(tmp_path)}
    one, two, three, four, five = one_after_another(shell, *commands, env=env)
    for done, folder in ((one, "run"), (two, "two")):
        assert (done.returncode, done.stderr.count("\n")) == (4, 1), done.stderr
        assert LINE.fullmatch(done.stderr.strip())
        assert "item 17 raised KeyError" in done.stderr
        logs = [path.read_text() for path in (shell.folder / folder).glob("run*.log")]
        assert any("KeyError: 'cat'" in log and "Traceback" in log for log in logs)
    assert (three.returncode, three.stderr.count("\n")) == (4, 1), three.stderr
    assert "the import of its module raised ZeroDivisionError: division by zero" in three.stderr
    assert "broken.py:2 in <module>: 1 / 0" in three.stderr
    for done, key in (
        (four, "dataset.keys=5"),
        (five, "dataset.train=[1]"),
    ):
        assert (done.returncode, done.stderr.count("\n")) == (2, 1), done.stderr
        assert done.stderr.startswith(f"error: {key}: ")
    left = {path.name for path in shell.folder.iterdir() if path.is_dir()}
    assert not left & {"three", "four", "five"}, "a folder was made"


# dataset=hf


def written(folder: Path, **columns: Any) -> Path:
    """A DatasetDict whose splits train and test have these columns."""
    made = datasets.Dataset.from_dict(columns)
    datasets.disable_progress_bars()
    datasets.DatasetDict(train=made, test=made).save_to_disk(folder / "set")
    return folder / "set"


def image(damaged: bool = False) -> dict[str, Any]:
    file = io.BytesIO()
    Image.new("RGB", (6, 6)).save(file, "PNG")
    return {"bytes": file.getvalue()[: 40 if damaged else None], "path": None}


def columns(**other: Any) -> dict[str, Any]:
    return {"image": [image(), image()], "label": [0, 1], **other}


HF_CASES: list[tuple[str, Callable[[Path], HF], int, str]] = [
    ("nothing", lambda p: HF(), 2, "dataset.root=null: no data is named"),
    ("both", lambda p: HF("x", name="y"), 2, "dataset.root=x: dataset.name is given too"),
    ("no folder", lambda p: HF(str(p / "no")), 4, "no: no such folder"),
    ("empty", lambda p: HF(str(p)), 4, "it holds no dataset; found nothing"),
    ("no split", lambda p: HF(str(written(p, **columns())), test="valid"), 4,
     "dataset.test=valid: no such split; found test, train in"),
    ("no image", lambda p: HF(str(written(p, **columns())), image="img"), 4,
     "dataset.image=img: the split train has no such column; found image, label"),
    ("no label", lambda p: HF(str(written(p, **columns())), label="y"), 4,
     "dataset.label=y: the split train has no such column; found image, label"),
    ("text", lambda p: HF(str(written(p, **columns(image=["a", "b"])))), 4,
     "dataset.image=image: the column holds Value('string')"),
    ("float labels", lambda p: HF(str(written(p, **columns(label=[0.5, 1.5])))), 4,
     "dataset.label=label: the column holds Value('float64'); class numbers are allowed"),
    ("missing label", lambda p: HF(str(written(p, **columns(label=[0, None])))), 4,
     "dataset.label=label: the column holds Value('int64'); class numbers are allowed, none"),
    ("negative", lambda p: HF(str(written(p, **columns(label=[0, -1])))), 4,
     "dataset.classes=1: the split train has labels from -1 to 0"),
    ("damaged", lambda p: HF(str(written(p, **columns(image=[image(True), image()])))), 4,
     "row 0 is no usable image"),
    ("classes", lambda p: HF(str(written(p, **columns())), classes=1), 4,
     "dataset.classes=1: the split train has labels from 0 to 1"),
    ("shape", lambda p: HF(str(written(p, **columns())), shape=(4, 6, 6)), 4,
     "dataset.shape=[4, 6, 6]: images cannot be made so"),
    ("name", lambda p: HF(name="no_owner/no_name"), 4,
     "dataset.name=no_owner/no_name: it is not on this machine"),
    ("path", lambda p: HF(name="../script.py"), 2, "it is no name of the hub"),
]  # fmt: skip


@pytest.mark.parametrize(("make", "code", "expected"), [case[1:] for case in HF_CASES],
                         ids=[case[0] for case in HF_CASES])  # fmt: skip
def test_a_hugging_face_dataset_that_cannot_be_used_says_what_there_is(
    tmp_path: Path, make: Callable[[Path], HF], code: int, expected: str
) -> None:
    with pytest.raises(Failure) as caught:
        make(tmp_path).prepare()
    assert expected in said(caught.value, code)


@pytest.mark.parametrize("damage", ["cut", "text"])
def test_damaged_files_of_a_hugging_face_dataset_are_one_line(tmp_path: Path, damage: str) -> None:
    root = written(tmp_path, **columns())
    if damage == "cut":
        (file,) = (root / "train").glob("*.arrow")
        file.write_bytes(file.read_bytes()[:100])
    else:
        (root / "dataset_dict.json").write_text("{")
    with pytest.raises(Failure) as caught:
        HF(str(root)).prepare()
    assert "it cannot be read (" in said(caught.value, 4)


def test_a_parquet_file_that_is_none_is_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "cache")
    for split in ("train", "test"):
        (tmp_path / f"{split}.parquet").write_bytes(b"no parquet")
    with pytest.raises(Failure) as caught:
        HF(str(tmp_path)).prepare()
    assert "it cannot be read (" in said(caught.value, 4)
