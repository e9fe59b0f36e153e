"""Bad input to dataset=mapped: one line that names it, and no traceback."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ninefold.dataset.mapped import Mapped
from ninefold.errors import Failure
from tests.conftest import ROOT, Shell
from tests.faults.refusals import LINE
from tests.faults.runs import one_after_another

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
        ["train.py", *job, "dataset.train=[1]", "hydra.run.dir=four"],
    ]  # fmt: skip
    env = {"PYTHONPATH": str(tmp_path)}
    one, two, three, four = one_after_another(shell, *commands, env=env)
    for done, folder in ((one, "run"), (two, "two")):
        assert (done.returncode, done.stderr.count("\n")) == (4, 1), done.stderr
        assert LINE.fullmatch(done.stderr.strip())
        assert "item 17 raised KeyError" in done.stderr
        logs = [path.read_text() for path in (shell.folder / folder).glob("run*.log")]
        assert any("KeyError: 'cat'" in log and "Traceback" in log for log in logs)
    assert (three.returncode, three.stderr.count("\n")) == (4, 1), three.stderr
    assert "the import of its module raised ZeroDivisionError: division by zero" in three.stderr
    assert "broken.py:2 in <module>: 1 / 0" in three.stderr
    assert (four.returncode, four.stderr.count("\n")) == (2, 1), four.stderr
    assert four.stderr.startswith("error: dataset.train=[1]: ")
    left = {path.name for path in shell.folder.iterdir() if path.is_dir()}
    assert not left & {"three", "four"}, "a folder was made"
