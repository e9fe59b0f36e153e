"""Command lines that are checked before they are composed."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest
from hydra.errors import ConfigCompositionException

from ninefold.config import overrides


@pytest.mark.parametrize(
    ("argument", "problem"),
    [
        ("logger=[default,quiet]", None),
        ("logger=quiet", None),
        ("logger=[quiet]", None),
        ("logger=[quiet,nowhere]", "logger=[quiet,nowhere]: no such option; "),
        ("logger=[]", "logger=[]: no such option; "),
        ("logger=[../amp/fp32]", "logger=[../amp/fp32]: no such option; "),
        ("model=[convnet]", "model=[convnet]: no such option; "),
    ],
)
def test_only_of_loggers_may_a_command_choose_several(argument: str, problem: str | None) -> None:
    found = [str(each) for each in overrides.of_arguments([argument], "train")]
    assert len(found) == (problem is not None)
    assert not found or found[0].startswith(f"error: {problem}")


@pytest.mark.parametrize("last", ["epochs=1", "hydra/launcher=joblib", "~scheduler", "seed"])
@pytest.mark.parametrize("flag", ["-m", "--multirun"])
def test_an_override_behind_a_flag_and_one_before_it_is_told_to_come_after_it(
    flag: str, last: str
) -> None:
    (found,) = overrides.of_arguments(["seed=0", flag, last], "train")
    assert str(found) == (
        f"error: arguments={last}: unrecognized arguments: {last}; "
        "flags are allowed before all key=value or behind them; put the flags first"
    )


def test_a_key_of_a_group_that_an_evaluation_takes_whole_says_what_to_add() -> None:
    error = ConfigCompositionException("Could not override 'task.loss'.")
    found = str(overrides._of_composition(error, ["ckpt=run", "task.loss=mse"]))
    assert found == (
        "error: task.loss=mse: task is taken from the checkpoint as a whole; a command that "
        "changes a key of it names its option too; add task=OPTION"
    )
    assert "as a whole" not in str(overrides._of_composition(error, ["task.loss=mse"]))


def test_a_key_that_another_option_of_its_group_has_is_offered_with_a_plus() -> None:
    error = ConfigCompositionException("Could not override 'model.memory_format'.")
    found = str(overrides._of_composition(error, ["model.memory_format=auto"]))
    assert "or +model.memory_format=... if the chosen one takes it" in found


def test_a_group_of_no_option_is_told_how_an_overlay_says_so() -> None:
    (found,) = overrides.of_arguments(["model=null"], "train")
    assert str(found).startswith("error: model=null: no such option; alexnet, convnet, ")
    assert "write `override /model: null` in the defaults of an overlay" in str(found)


def line(arguments: list[str]) -> str:
    (found,) = overrides.of_arguments(arguments, "train")
    return str(found)


def test_an_argument_that_this_locale_cannot_decode_is_refused_with_what_to_set() -> None:
    word = os.fsencode("dataset.root=/dé").decode("ascii", "surrogateescape")
    other = b"dataset.root=/d\xff".decode("utf-8", "surrogateescape")
    for each in (word, other):
        assert "it is not UTF-8, or this locale is not; " in line([each])
        assert line([each]).endswith("set LC_ALL=C.UTF-8 or PYTHONUTF8=1")


@pytest.mark.parametrize("name", ["${HOME}", "a${oc.env:HOME}", "${x"])
def test_a_working_directory_that_hydra_takes_for_a_reference_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    folder = tmp_path / name
    folder.mkdir()
    monkeypatch.chdir(folder)
    assert line(["seed=0"]).startswith(f"error: directory={folder}: its name holds ${{; ")


def test_a_working_directory_that_is_gone_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "gone"
    folder.mkdir()
    monkeypatch.chdir(folder)
    shutil.rmtree(folder)
    assert "the working directory is gone" in line(["seed=0"])
