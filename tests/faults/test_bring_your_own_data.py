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
    assert '"raises": lambda: {}["cat"],; correct it (the run\'s log' in line


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


def damaged(folder: Path, damage: str) -> HF:
    """A dataset of which a file is damaged."""
    if damage == "parquet":
        for split in ("train", "test"):
            (folder / f"{split}.parquet").write_bytes(b"no parquet")
        return HF(str(folder))
    root = written(folder, **columns())
    if damage == "cut":
        (file,) = (root / "train").glob("*.arrow")
        file.write_bytes(file.read_bytes()[:100])
    else:
        (root / "dataset_dict.json").write_text("{")
    return HF(str(root))


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
    ("cut", lambda p: damaged(p, "cut"), 4, "it cannot be read ("),
    ("broken", lambda p: damaged(p, "json"), 4, "it cannot be read ("),
    ("no parquet", lambda p: damaged(p, "parquet"), 4, "it cannot be read ("),
]  # fmt: skip


@pytest.mark.parametrize(("make", "code", "expected"), [case[1:] for case in HF_CASES],
                         ids=[case[0] for case in HF_CASES])  # fmt: skip
def test_a_hugging_face_dataset_that_cannot_be_used_says_what_there_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, make: Callable[[Path], HF], code: int,
    expected: str,
) -> None:  # fmt: skip
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "cache")
    with pytest.raises(Failure) as caught:
        make(tmp_path).prepare()
    assert expected in said(caught.value, code)
