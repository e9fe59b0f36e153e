"""A command is printed as this user types it; modules are found where the launcher found them."""

import json
import os
import sys
from importlib.machinery import ModuleSpec
from importlib.util import spec_from_file_location

import pytest

from ninefold import places
from ninefold.process import importable
from ninefold.report.data.retrain_command import trained_with
from tests.conftest import ROOT


@pytest.fixture(autouse=True)
def nothing_typed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("NINEFOLD_TYPED", raising=False)


def test_in_a_clone_scripts_and_modules_are_typed_and_conf_is_a_folder():
    found = (places.ROOT, places.CONF, places.EXPERIMENTS)
    assert found == (ROOT, ROOT / "conf", ROOT / "experiments")
    assert not places.INSTALLED
    assert places.typed_as("train") == "python train.py"
    assert places.typed_as("evaluate") == "python evaluate.py"
    assert places.typed_as("fits") == "python -m ninefold fits"
    assert places.see() == "see conf/"
    assert places.see("model") == "see conf/model/"


def test_installed_the_console_script_is_typed_and_prints_the_configuration(monkeypatch):
    monkeypatch.setattr(places, "INSTALLED", True)
    assert places.typed_as("train") == "ninefold train"
    assert places.typed_as("fits") == "ninefold fits"
    assert places.see() == "see ninefold conf"
    assert places.see("model") == "see ninefold conf model"


@pytest.mark.parametrize("program", places.PROGRAMS)
def test_what_was_typed_is_printed_and_nothing_else_of_the_environment(program, monkeypatch):
    places.typed_with(program)
    assert places.typed_as("train") == f"{program} train"
    places.typed_with(None)
    assert places.typed_as("train") == "python train.py"
    monkeypatch.setenv("NINEFOLD_TYPED", "rm -r")
    assert places.typed_as("train") == "python train.py"


def test_a_report_takes_the_words_of_the_recorded_command_if_they_are_ours():
    assert trained_with("ninefold train -m amp=fp32") == "ninefold train"
    assert trained_with("python -m ninefold train") == "python -m ninefold train"
    assert trained_with("python train.py -m") == "python train.py"
    assert trained_with("ninefold trainer; rm -r x") == "python train.py"
    assert trained_with(None) == "python train.py"


def test_the_file_of_a_module_is_found_as_an_import_finds_it(monkeypatch, tmp_path):
    """As pip's editable installations do: a finder of their own, and nothing in sys.path."""

    class Finder:
        @staticmethod
        def find_spec(name: str, path: object, target: object = None) -> ModuleSpec | None:
            there = tmp_path / name / "__init__.py"
            return spec_from_file_location(name, there) if there.exists() else None

    (tmp_path / "mine").mkdir()
    for name in ("__init__", "data"):
        (tmp_path / "mine" / f"{name}.py").touch()
    monkeypatch.setattr(sys, "meta_path", [*sys.meta_path, Finder])
    assert places.file_of("mine") == tmp_path / "mine" / "__init__.py"
    assert places.file_of("mine.data") == tmp_path / "mine" / "data.py"
    assert places.file_of("mine.other") is places.file_of("sys") is places.file_of("none") is None


def test_modules_are_looked_for_in_the_order_of_the_process_before(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", ["", "/stdlib", "/site", "relative"])
    with importable():
        assert os.environ["PYTHONPATH"].split(os.pathsep)[0] == str(ROOT)
        told = os.environ["NINEFOLD_PATH"]
    assert json.loads(told) == [str(tmp_path), "/stdlib", "/site", str(tmp_path / "relative")]
    assert "NINEFOLD_PATH" not in os.environ
    monkeypatch.setenv("NINEFOLD_PATH", told)
    monkeypatch.setattr(sys, "path", ["", str(ROOT), "/site", "/stdlib"])
    places.take_path()
    assert sys.path == [*json.loads(told), str(ROOT)]
    assert "NINEFOLD_PATH" not in os.environ
    places.take_path()  # by a process that was told nothing
    assert sys.path == [*json.loads(told), str(ROOT)]
