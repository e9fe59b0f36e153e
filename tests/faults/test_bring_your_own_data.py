"""Bad input to dataset=mapped: one line that names it, and no traceback."""

from typing import Any

import pytest

from ninefold.dataset.mapped import Mapped
from ninefold.errors import Failure
from tests.faults.refusals import LINE

MINE = "tests.dataset.mine"


def said(failure: Failure, code: int) -> str:
    """The line of a failure, which must have the documented form and exit code."""
    assert LINE.fullmatch(str(failure)), str(failure)
    assert failure.code == code
    return str(failure)


def node(target: str, **arguments: Any) -> dict[str, Any]:
    return {"_target_": f"{MINE}.{target}", **arguments}


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
def test_a_class_that_cannot_be_used_is_found_by_the_launcher(described, code, expected):
    with pytest.raises(Failure) as caught:
        Mapped(train=described, test=described).prepare()
    assert expected in said(caught.value, code)


def test_a_module_that_cannot_be_imported_is_told_with_its_line(tmp_path, monkeypatch):
    (tmp_path / "broken.py").write_text("print('imported')\n1 / 0\n")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(Failure) as caught:
        Mapped(train={"_target_": "broken.D"}, test={"_target_": "broken.D"}).prepare()
    line = said(caught.value, 4)
    assert "the import of its module raised ZeroDivisionError: division by zero" in line
    assert "broken.py:2 in <module>: 1 / 0" in line
