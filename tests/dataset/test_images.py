"""A folder of images whose links lead nowhere is refused by the path."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from ninefold.dataset.folder import Folder
from ninefold.errors import DataError


@pytest.fixture
def root(tmp_path: Path) -> Path:
    for place in ("train/a", "train/b", "test/a", "test/b"):
        (tmp_path / place).mkdir(parents=True)
        Image.fromarray(np.zeros((8, 8, 3), np.uint8)).save(tmp_path / place / "0.png")
    return tmp_path


@pytest.mark.parametrize("place", ["train/c", "train/a/1.png", "test/b/x"])
def test_a_link_to_itself_is_named(root: Path, place: str) -> None:
    link = root / place
    link.symlink_to(link.name)
    with pytest.raises(DataError) as caught:
        Folder(str(root), shape=(3, 8, 8)).prepare()
    assert f"{link} cannot be read; Too many levels of symbolic links" in str(caught.value)


def test_a_class_folder_that_leads_upwards_is_named(root: Path) -> None:
    for split in ("train", "test"):
        (root / split / "c").symlink_to("..")
    with pytest.raises(DataError, match=r"no images in .*/train/c"):
        Folder(str(root), shape=(3, 8, 8)).prepare()
