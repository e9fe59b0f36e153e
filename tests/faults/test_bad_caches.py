"""Set D, caches: keys of dataset.cache that cannot be meant are one line each."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from tests.conftest import Shell
from tests.faults.refusals import Key, mistaken, mistakes, refused, timed


@pytest.fixture
def root(tmp_path: Path) -> Path:
    random = np.random.default_rng(0)
    for split in ("train", "test"):
        for name in ("cat", "dog"):
            folder = tmp_path / "photos" / split / name
            folder.mkdir(parents=True)
            for number in range(4):
                pixels = random.integers(0, 256, (8, 8, 3), dtype=np.uint8)
                Image.fromarray(pixels).save(folder / f"{number}.png")
    return tmp_path / "photos"


USUAL = ("dataset=folder", "dataset.shape=[3,8,8]", "model.input_size=null", "batch_size=4")
KEYS: list[Key] = [
    ("dataset.cache=disc", 2, "dataset.cache=disc", "disk", False),
    ("dataset.cache=ram", 2, "dataset.cache=ram", "disk", True),
    ("dataset.cache=true", 2, "dataset.cache=true", "disk", False),
    ("dataset.cache=[disk]", 2, "dataset.cache=", "disk", False),
    ("dataset.cach=disk", 2, "dataset.cach=disk", "did you mean dataset.cache", False),
    ("dataset.cache=disk dataset.cache_dir=null", 2, "dataset.cache_dir=null", "a folder", False),
    ("dataset.cache=disk dataset.cache_dir=5", 2, "dataset.cache_dir=5", "not allowed", False),
    ("dataset.cache=disk dataset.cache_dir=/dev/null/x", 5, "dataset.cache_dir=/dev/null/x",
     "Not a directory", False),
    ("dataset.cache=disk dataset.cache_dir=/proc/none", 5, "dataset.cache_dir=/proc/none",
     "decoded examples are written there", False),
    ("dataset.cache=disk dataset.shape=[3,99999,99999]", 5, "dataset.cache=disk", "are needed",
     False),
]  # fmt: skip


@mistakes(KEYS)
def test_a_mistake_in_the_keys_is_one_line(
    shell: Shell, root: Path, options: str, code: int, field: str, hint: str
) -> None:
    cache = f"dataset.cache_dir={root.parent / 'cache'}"
    mistaken(shell, (*USUAL, f"dataset.root={root}", cache), options, code, field, hint)
    assert not list((root.parent / "cache").glob("*"))


@pytest.mark.slow
def test_a_dataset_that_decodes_nothing_has_no_cache(shell: Shell) -> None:
    done = timed(shell.train, "dataset=digits", "dataset.cache=disk", "hydra.run.dir=run")
    refused(done, 2, "dataset.cache=disk", hint="no such key")
