"""Bad input to dataset=hf: one line that names it."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import datasets
import pytest

from ninefold.errors import Failure
from ninefold.extensions.hf import HF
from tests.extensions.hf.test_hf import PIXELS, png
from tests.faults.refusals import LINE


def written(folder: Path, **columns: Any) -> Path:
    """A DatasetDict whose splits train and test have these columns."""
    made = datasets.Dataset.from_dict(columns)
    datasets.disable_progress_bars()
    datasets.DatasetDict(train=made, test=made).save_to_disk(folder / "set")
    return folder / "set"


IMAGE = png(PIXELS[0])
DAMAGED = {**IMAGE, "bytes": IMAGE["bytes"][:40]}


def columns(**other: Any) -> dict[str, Any]:
    return {"image": [IMAGE, IMAGE], "label": [0, 1], **other}


def cut_short(folder: Path) -> HF:
    root = written(folder, **columns())
    (file,) = (root / "train").glob("*.arrow")
    file.write_bytes(file.read_bytes()[:100])
    return HF(str(root))


HF_CASES: list[tuple[str, Callable[[Path], HF], int, str]] = [
    ("nothing", lambda p: HF(), 2, "dataset.root=null: no data is named"),
    ("both", lambda p: HF("x", name="y"), 2, "dataset.root=x: dataset.name is given too"),
    ("no folder", lambda p: HF(str(p / "no")), 4, "no: no such folder"),
    ("empty", lambda p: HF(str(p)), 4, "it cannot be read ("),
    ("no split", lambda p: HF(str(written(p, **columns())), test="valid"), 4,
     "dataset.test=valid: no such split; found test, train in"),
    ("no image", lambda p: HF(str(written(p, **columns())), image="img"), 4,
     "dataset.image=img: the split train has no such column; found image, label"),
    ("text", lambda p: HF(str(written(p, **columns(image=["a", "b"])))), 4,
     "dataset.image=image: the column holds Value('string')"),
    ("missing label", lambda p: HF(str(written(p, **columns(label=[0, None])))), 4,
     "dataset.label=label: the column holds Value('int64'); class numbers are allowed, none"),
    ("damaged", lambda p: HF(str(written(p, **columns(image=[DAMAGED, IMAGE])))), 4,
     "row 0 is no usable image"),
    ("null", lambda p: HF(str(written(p, **columns(image=[None, IMAGE])))), 4,
     "row 0 is no usable image (it has none)"),
    ("classes", lambda p: HF(str(written(p, **columns())), classes=1), 4,
     "dataset.classes=1: the split train has labels from 0 to 1"),
    ("name", lambda p: HF(name="no_owner/no_name"), 4,
     "dataset.name=no_owner/no_name: it is not on this machine"),
    ("path", lambda p: HF(name="../script.py"), 2, "it is no name of the hub"),
    ("cut", cut_short, 4, "it cannot be read ("),
]  # fmt: skip


@pytest.mark.parametrize(("make", "code", "expected"), [case[1:] for case in HF_CASES],
                         ids=[case[0] for case in HF_CASES])  # fmt: skip
def test_an_unusable_dataset_says_what_there_is(tmp_path, monkeypatch, make, code, expected):
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "cache")
    with pytest.raises(Failure) as caught:
        make(tmp_path).prepare()
    assert caught.value.code == code
    assert LINE.fullmatch(str(caught.value))
    assert expected in str(caught.value)
