"""dataset.classes=null: the launcher counts them before the job is frozen."""

from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from ninefold.dataset.folder import Folder
from tests.faults.runs import one_after_another


@pytest.fixture
def photos(tmp_path: Path) -> Path:
    """A folder of three classes, ten images each, twice as wide as high, the left half white."""
    for split in ("train", "test"):
        for name in ("cat", "dog", "frog"):
            folder = tmp_path / "photos" / split / name
            folder.mkdir(parents=True)
            pixels = np.zeros((8, 16, 3), np.uint8)
            pixels[:, :8] = 255
            exif = Image.Exif()
            exif[0x0112] = 6  # the camera was turned by a quarter
            for number in range(10):
                Image.fromarray(pixels).save(folder / f"{number}.png", exif=exif)
    return tmp_path / "photos"


def job_of(photos: Path) -> list[str]:
    return [
        "dataset=folder", f"dataset.root={photos}", "dataset.shape=[3,8,8]", "batch_size=10",
        "device=cpu", "threads=1", "logger=quiet", "clock.warmup=0",
    ]  # fmt: skip


def test_the_frozen_job_holds_the_number_of_class_folders_in_all_that_refers_to_it(shell, photos):
    job = job_of(photos)
    commands = [
        ["train.py", *job, "max_steps=2", "hydra.run.dir=outputs/runs/run"],
        ["train.py", *job, "resume=auto", "max_steps=3"],
        ["train.py", "resume=outputs/runs/run", "max_steps=4"],
        ["evaluate.py", "ckpt=outputs/runs/run", "device=cpu", "dataset=folder",
         f"dataset.root={photos}", "dataset.shape=[3,8,8]"],
        ["train.py", *job, "dataset.classes=4"],
    ]  # fmt: skip
    *fine, four = one_after_another(shell, *commands)
    for done in fine:
        assert done.returncode == 0, done.stderr
    config = (shell.folder / "outputs" / "runs" / "run" / "config.yaml").read_text()
    assert config.count("classes: 3\n") == 3, "of dataset, task and model.net"
    assert "null" not in [line.partition("classes: ")[2] for line in config.splitlines()]
    assert (four.returncode, four.stderr.count("\n")) == (4, 1)
    assert "dataset.classes=4" in four.stderr


def test_exif_turns_images_as_they_say_only_if_it_is_asked_to(photos):
    plain, turned = (
        Folder(str(photos), shape=(3, 16, 16), exif=exif).load("train").inputs[np.arange(1)][0]
        for exif in (False, True)
    )
    assert plain.mean(axis=(0, 1)).std() > 50  # white on the left
    assert plain.mean(axis=(0, 2)).std() < 1
    assert turned.mean(axis=(0, 2)).std() > 50  # white at the top
    assert turned.mean(axis=(0, 1)).std() < 1
