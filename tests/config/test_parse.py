"""The words of a command: quotes that Hydra's grammar needs, and the last value of each key."""

from __future__ import annotations

import pytest

from ninefold.config import overrides
from ninefold.config.parse import last_of_each, quoted


@pytest.mark.parametrize("path", ["/data/dé/x", "/数据", "/data/a é", "~/å=b"])
def test_a_path_with_letters_outside_ascii_needs_no_quotes(path: str) -> None:
    assert overrides.of_arguments([f"hydra.run.dir={path}"], "train") == []
    assert quoted([f"hydra.run.dir={path}"]) == [f"hydra.run.dir='{path}'"]


def test_values_that_hydra_reads_as_they_are_are_left_alone() -> None:
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
        ("a=(,  a=1", "a=1"),
    ],
)
def test_of_several_values_of_a_key_the_last_wins(given: str, kept: str) -> None:
    assert last_of_each(given.split()) == kept.split()
