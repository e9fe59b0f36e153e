"""Letters outside ASCII in a command, and folders that Hydra cannot name."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest

from ninefold.config import letters, overrides


def line(arguments: list[str]) -> str:
    (found,) = overrides.of_arguments(arguments, "train")
    return str(found)


@pytest.mark.parametrize("path", ["/data/dé/x", "/数据", "/data/a é", "~/å=b"])
def test_a_path_with_letters_outside_ascii_needs_no_quotes(path: str) -> None:
    assert overrides.of_arguments([f"hydra.run.dir={path}"], "train") == []
    assert letters.quoted([f"hydra.run.dir={path}"]) == [f"hydra.run.dir='{path}'"]


def test_values_that_hydra_reads_as_they_are_are_left_alone() -> None:
    words = ["-m", "seed=0,1", "model.x='é'", "a=[é,ü]", "b=é,ü", "--config-dir=dé", "c=/plain"]
    assert letters.quoted(words) == words


def test_an_argument_that_this_locale_cannot_decode_is_refused_with_what_to_set() -> None:
    word = os.fsencode("dataset.root=/dé").decode("ascii", "surrogateescape")
    assert "it cannot be decoded in this locale; " in line([word])
    assert line([word]).endswith("set LC_ALL=C.UTF-8 or PYTHONUTF8=1")
    assert "it is not UTF-8; " in line([b"dataset.root=/d\xff".decode("utf-8", "surrogateescape")])


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
