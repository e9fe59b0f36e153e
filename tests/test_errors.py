"""The line of the user's own code that an error comes from, and limits of the system."""

from __future__ import annotations

import errno
import importlib.util
import json
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch

from ninefold.errors import error_of_exit, is_users, memory_failure, users_line
from tests.conftest import ROOT

CODE = """
import json
import sys
import torch

def mine(): raise ValueError("mine")
def in_python(): json.loads("{")
def in_torch(): torch.zeros(2) @ torch.zeros(3)
def through_a_library():
    return torch.utils.data.default_collate([Odd()])
class Odd:
    def __getattr__(self, name): raise ValueError("deep")
def from_another():
    try:
        mine()
    except ValueError as error:
        raise KeyError("second") from error
def leaves(): sys.exit(0)
def stops(): raise KeyboardInterrupt
class Own(BaseException): pass
def own(): raise Own("odd")
"""


@pytest.fixture
def users(tmp_path: Path) -> ModuleType:
    path = tmp_path / "users.py"
    path.write_text(CODE)
    spec = importlib.util.spec_from_file_location("users", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def raised(call: Callable[[], Any]) -> BaseException:
    try:
        call()
    except BaseException as error:
        return error  # its outermost frames are of this test, which is nobody's library
    raise AssertionError


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("mine", "def mine"),
        ("in_python", "def in_python"),
        ("in_torch", "def in_torch"),
        ("from_another", "raise KeyError"),
    ],
)
def test_the_innermost_line_of_the_users_own_code_is_named(
    users: ModuleType, name: str, text: str
) -> None:
    error = raised(lambda: getattr(users, name)())
    number = next(n for n, line in enumerate(CODE.splitlines(), 1) if text in line)
    assert users_line(error) == f"{users.__file__}:{number}"


def test_an_error_that_was_raised_from_the_users_is_at_its_line(users: ModuleType) -> None:
    outer = RuntimeError("of a library")
    outer.__cause__ = raised(users.mine)
    assert users_line(outer) == f"{users.__file__}:6"


def test_a_file_that_is_not_python_is_named_by_its_line(tmp_path: Path) -> None:
    path = tmp_path / "broken.py"
    path.write_text("x = 1\ndef f(:\n")
    error = raised(lambda: compile(path.read_text(), str(path), "exec"))
    assert users_line(error) == f"{path}:2"


def test_code_of_ours_of_python_and_of_packages_is_nobodys_own() -> None:
    for file in (
        ROOT / "ninefold" / "main.py",
        ROOT / "train.py",
        json.__file__,
        torch.__file__,
        "/home/someone/.local/lib/python3.11/site-packages/x.py",
        "/usr/lib/python3/dist-packages/x.py",
        "<frozen importlib>",
        "yaml/_yaml.pyx",
    ):
        assert not is_users(str(file)), file
    assert is_users(str(ROOT / "my_model.py"))


def test_what_ends_the_process_in_the_users_code_is_refused_but_not_ctrl_c(
    users: ModuleType,
) -> None:
    for name, said in (("leaves", "SystemExit: 0"), ("own", "Own: odd")):
        failure = error_of_exit(raised(getattr(users, name)))
        assert failure is not None
        assert failure.code == 2
        assert failure.wrong == f"it raised {said}"
        assert failure.value.startswith(f"{users.__file__}:")
    assert error_of_exit(raised(users.stops)) is None
    assert error_of_exit(SystemExit(0)) is None  # of ours


@pytest.mark.parametrize(
    ("error", "field"),
    [
        (OSError(errno.EMFILE, "Too many open files", "x"), "files"),
        (OSError(errno.ENFILE, "Too many open files in system"), "files"),
        (BlockingIOError(errno.EAGAIN, "Resource temporarily unavailable"), "processes"),
        (RuntimeError("can't start new thread"), "processes"),
        (RuntimeError("Resource temporarily unavailable"), "processes"),
    ],
    ids=str,
)
def test_a_limit_on_files_or_processes_is_a_resource(error: Exception, field: str) -> None:
    outer = RuntimeError("it cannot be built")
    outer.__cause__ = error
    for each in (error, outer):
        failure = memory_failure(each, "found")
        assert failure is not None
        assert (failure.code, failure.field) == (5, field)
