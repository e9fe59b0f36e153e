"""dataset.cache=bytes: files are read once, and decoded to the same bits each time."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from ninefold.dataset import Split, encoded
from ninefold.dataset.cache import make, reader
from ninefold.dataset.digits import Digits
from ninefold.dataset.folder import Folder
from ninefold.errors import ConfigError, DataError, ResourceError

SPLITS: tuple[Split, ...] = ("train", "test")


@pytest.fixture
def root(tmp_path: Path) -> Path:
    draw = np.random.default_rng(0)
    for split in SPLITS:
        for name in ("cat", "dog"):
            (tmp_path / split / name).mkdir(parents=True)
            for number in range(5):
                pixels = draw.integers(0, 256, (30, 40, 3), np.uint8)
                Image.fromarray(pixels).save(tmp_path / split / name / f"{number}.jpg")
    return tmp_path


def folder(root: Path) -> Folder:
    return Folder(str(root), shape=[3, 8, 9], cache="bytes")


def made(dataset: Any) -> dict[str, str]:
    files = make(dataset, {"_target_": "mine.Own"}, 1)
    assert files is not None
    return files


def test_files_in_memory_are_decoded_to_the_same_bits_without_the_files(root: Path) -> None:
    dataset, rows = folder(root), np.array([3, 1, 9])
    load = reader(dataset, made(dataset))
    for split in SPLITS:
        plain, held = dataset.load(split), load(split)
        expected = plain.inputs[rows]
        for path in (root / split).glob("*/*"):
            path.write_bytes(b"")
        assert np.array_equal(held.inputs[rows], expected)
        assert np.array_equal(held.targets[rows], plain.targets[rows])


def test_another_process_reads_them_and_a_second_run_does_not_read_them_again(root: Path) -> None:
    files = made(folder(root))
    assert made(folder(root)) is files
    code = "import os, sys; print(os.stat(sys.argv[1]).st_size)"
    done = subprocess.run(
        [sys.executable, "-c", code, files[encoded.BYTES]], capture_output=True, check=True
    )
    assert int(done.stdout) == sum(path.stat().st_size for path in root.glob("*/*/*"))


def test_files_that_do_not_fit_into_memory_are_refused_before_they_are_read(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(encoded, "available_memory", lambda: 1000)
    with pytest.raises(ResourceError, match=r"dataset.cache=bytes: the files take .* are allowed"):
        made(folder(root))


def test_a_dataset_without_image_files_cannot_keep_them() -> None:
    with pytest.raises(ConfigError, match="folder and masks do"):
        encoded.make(Digits(), {"_target_": "mine.Own"})


def test_a_damaged_file_in_memory_is_named_by_its_path(root: Path) -> None:
    path = root / "train" / "cat" / "0.jpg"
    path.write_bytes(b"no image")
    dataset = folder(root)
    held = reader(dataset, made(dataset))("train")
    with pytest.raises(DataError) as told:
        held.inputs[np.array([0])]
    assert f"{path} is no usable image (cannot identify image file)" in str(told.value)


def test_files_that_were_added_since_are_an_error(root: Path) -> None:
    dataset = folder(root)
    load = reader(dataset, made(dataset))
    Image.new("RGB", (9, 9)).save(root / "train" / "cat" / "9.jpg")
    with pytest.raises(DataError, match="added or removed"):
        load("train")
