"""The words of a command: what is refused before it is composed, quotes, the last of each key."""

import os
import shutil

import pytest

from ninefold.config import overrides
from ninefold.config.hydra_parts import parsed
from ninefold.words import last_of_each, quoted


def line(arguments: list[str]) -> str:
    (found,) = overrides.of_arguments(arguments, "train")
    return str(found)


def test_an_argument_that_this_locale_cannot_decode_is_refused_with_what_to_set():
    word = os.fsencode("dataset.root=/dé").decode("ascii", "surrogateescape")
    other = b"dataset.root=/d\xff".decode("utf-8", "surrogateescape")
    for each in (word, other):
        assert "it is not UTF-8, or this locale is not; " in line([each])
        assert line([each]).endswith("set LC_ALL=C.UTF-8 or PYTHONUTF8=1")


def test_a_working_directory_that_is_gone_is_told(tmp_path, monkeypatch):
    folder = tmp_path / "gone"
    folder.mkdir()
    monkeypatch.chdir(folder)
    shutil.rmtree(folder)
    assert "the working directory is gone" in line(["seed=0"])


@pytest.mark.parametrize("path", ["/data/dé/x", "/数据", "/data/a é", "~/å=b"])
def test_a_path_with_letters_outside_ascii_needs_no_quotes(path):
    (override,) = parsed(quoted([f"hydra.run.dir={path}"]))
    assert str(override.value()) == path


def test_values_that_hydra_reads_as_they_are_are_left_alone():
    words = ["-m", "seed=0,1", "model.x='é'", "a=[é,ü]", "b=é,ü", "--config-dir=dé", "c=/plain"]
    assert quoted(words) == words


@pytest.mark.parametrize(
    ("given", "kept"),
    [
        ("threads=1 epochs=3 threads=2", "epochs=3 threads=2"),
        ("amp=fp32 amp=bf16 amp=fp32", "amp=fp32"),
        ("dataset.shape=[1,2,3] dataset.shape=[3,2,1]", "dataset.shape=[3,2,1]"),
        ("-m seed=0,1 seed=2", "-m seed=2"),
        ("+a=1 a=2 ++a=3 ~a a=4", "+a=1 ++a=3 ~a a=4"),
        ("--config-dir a=b a=1 a=2", "--config-dir a=b a=2"),
        ("--config-dir=b a=1 a=2", "--config-dir=b a=2"),
        ("a=(,  a=1", "a=1"),
        ("o=sgd o={lr:0.1} o={lr:1}", "o=sgd o={lr:1}"),
    ],
)
def test_of_several_values_of_a_key_the_last_wins(given, kept):
    assert last_of_each(given.split()) == kept.split()
