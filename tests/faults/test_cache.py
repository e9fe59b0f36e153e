"""Caches of decoded examples when disks are full, processes are killed and commands are stopped."""

from __future__ import annotations

import hashlib
import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from tests.conftest import ROOT, Shell, wait_until
from tests.dataset.kit import photos as written
from tests.faults.refusals import Key, mistaken, mistakes

SHAPE = "dataset.shape=[3,700,700]"
DATA = (
    "dataset=folder", "dataset.root=photos", "dataset.classes=2", SHAPE, "dataset.cache_dir=cache",
)  # fmt: skip
RUN = (
    *DATA, "model.input_size=8", "batch_size=8", "threads=2", "logger=quiet",
    "clock.warmup=0",
)  # fmt: skip
PACK = (str(ROOT / "train.py"), *RUN, "dataset.cache=disk", "epochs=0")
ENV = {"PYTHONPATH": str(ROOT)}


@pytest.fixture
def photos(shell: Shell) -> Path:
    """60 images that take some 50 ms each to decode."""
    root = shell.folder / "photos"
    pixels = np.random.default_rng(0).integers(0, 256, (1200, 1200, 3), np.uint8)
    Image.fromarray(pixels).save(shell.folder / "one.png", compress_level=1)
    for split, count in (("train", 20), ("test", 10)):
        for name in ("cat", "dog"):
            (root / split / name).mkdir(parents=True)
            for number in range(count):
                (root / split / name / f"{number}.png").hardlink_to(shell.folder / "one.png")
    return root


def left(folder: Path) -> list[Path]:
    """What is in the folder of caches, but for locks."""
    found = folder.iterdir() if folder.exists() else []
    return [path for path in found if path.suffix != ".lock"]


def wait_for_packing(folder: Path, process: subprocess.Popen[str]) -> None:
    """Until some rows have been written to a cache that is being made."""

    def begun() -> bool:
        files = folder.glob(".*.tmp/train.inputs.npy")
        return any(any(path.read_bytes()[200:4000]) for path in files)

    wait_until(begun, process)


def packed(shell: Shell) -> dict[str, str]:
    """Pack, and check that the result is whole; returns the hash of each file."""
    done = shell.run(*PACK, env=ENV)
    assert done.returncode == 0, done.stderr
    (folder,) = left(shell.folder / "cache")
    assert np.load(folder / "train.inputs.npy")[-1].any()
    return {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in folder.iterdir()}


@pytest.mark.slow
def test_a_second_command_waits_for_the_one_that_packs(shell: Shell, photos: Path) -> None:
    first = shell.start(*PACK, env=ENV)
    wait_for_packing(shell.folder / "cache", first)
    second = shell.run(*PACK, env=ENV)
    _, stderr = first.communicate()
    assert first.returncode == second.returncode == 0, stderr + second.stderr
    assert second.stderr == f"waiting for another process that packs {photos.name}\n"
    assert "cached photos: 60 files" in stderr


@pytest.mark.slow
@pytest.mark.parametrize(
    ("number", "code"),
    [(signal.SIGINT, 130), (signal.SIGTERM, 75)],
    ids=lambda value: str(value),
)
def test_a_signal_while_packing_leaves_nothing(
    shell: Shell, photos: Path, number: signal.Signals, code: int
) -> None:
    process = shell.start(*PACK, env=ENV)
    wait_for_packing(shell.folder / "cache", process)
    os.killpg(process.pid, number)  # as a terminal does: to all processes of the command
    _, stderr = process.communicate(timeout=60)
    assert process.returncode == code, stderr
    assert re.fullmatch(rf"error: signal={number.name}: .*; .*; .*\n", stderr), stderr
    assert left(shell.folder / "cache") == []
    assert not shell.survivors()
    packed(shell)


@pytest.mark.slow
@pytest.mark.parametrize("another", [False, True])
def test_a_packing_command_that_is_killed_leaves_nothing_that_the_next_one_does_not_remove(
    shell: Shell, photos: Path, another: bool
) -> None:
    process = shell.start(*PACK, env=ENV)
    wait_for_packing(shell.folder / "cache", process)
    shell.kill(process)
    assert any(path.suffix == ".tmp" for path in left(shell.folder / "cache"))
    if another:  # cache, with another key
        os.utime(photos / "train" / "cat" / "0.png", ns=(1, 1))
    first = packed(shell)
    assert len(left(shell.folder / "cache")) == 1
    (shell.folder / "cache").rename(shell.folder / "other")
    assert packed(shell) == first


@pytest.mark.slow
@pytest.mark.parametrize("number", [1, 2, 3])
def test_a_command_killed_at_any_rename_is_followed_by_one_that_is_right(
    shell: Shell, photos: Path, number: int
) -> None:
    expected = packed(shell)
    (folder,) = left(shell.folder / "cache")
    os.truncate(folder / "train.inputs.npy", 1000)  # so that the old one has to make room
    renames = "rename,renameat,renameat2"
    done = subprocess.run(
        [
            *("strace", "-qq", "-o", "/dev/null", "-e", f"trace={renames}"),
            *("-e", f"inject={renames}:signal=KILL:when={number}", sys.executable, *PACK),
        ],
        cwd=shell.folder,
        env={**os.environ, **ENV},
        capture_output=True,
        text=True,
    )
    assert done.returncode in (-signal.SIGKILL, 128 + signal.SIGKILL), done.stderr
    assert not shell.survivors()
    assert packed(shell) == expected
    assert len(left(shell.folder / "cache")) == 1


@pytest.mark.slow
@pytest.mark.parametrize("where", ["fallocate", "pwrite64"])
def test_a_disk_that_is_full_while_packing_is_one_line(
    shell: Shell, photos: Path, where: str
) -> None:
    when = "1" if where == "fallocate" else "5+"
    done = subprocess.run(
        [
            *("strace", "-f", "-qq", "-o", "/dev/null", "-e", f"trace={where}"),
            *("-e", f"inject={where}:error=ENOSPC:when={when}", sys.executable),
            *PACK,
        ],
        cwd=shell.folder,
        env={**os.environ, **ENV},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 5, done.stderr
    assert re.fullmatch(
        r"error: dataset.cache_dir=\S*: No space left on device; decoded examples are written "
        r"there; free some room, .*\n",
        done.stderr,
    ), done.stderr
    assert left(shell.folder / "cache") == []
    assert not (shell.folder / "outputs").exists()
    packed(shell)


@pytest.mark.slow
@pytest.mark.skipif(os.geteuid() != 0, reason="only root may mount")
@pytest.mark.parametrize(
    ("options", "line"),
    [
        ("size=64m,ro", r"dataset.cache_dir=\S*/disk/c: Read-only file system; "),
        (
            "size=64m",
            r"dataset.cache=disk: 84.1 MiB are needed; 60.8 MiB, 95 % of what is free on \S*/disk",
        ),
    ],
)
def test_a_disk_that_cannot_take_a_cache_is_refused(
    shell: Shell, photos: Path, options: str, line: str
) -> None:
    disk = shell.folder / "disk"
    disk.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", options, "tmpfs", str(disk)], check=True)
    try:
        done = shell.train(*RUN[:4], *RUN[5:], "dataset.cache=disk", "dataset.cache_dir=disk/c")
        assert done.returncode == 5, done.stderr
        assert re.match(f"error: {line}", done.stderr), done.stderr
        assert done.stderr.count("\n") == 1
    finally:
        subprocess.run(["umount", str(disk)], check=True)


KEYS: list[Key] = [
    ("dataset.cache=ram", 2, "dataset.cache=ram", "disk", True),
    ("dataset.cache=[disk]", 2, "dataset.cache=", "disk", False),
    ("dataset.cach=disk", 2, "dataset.cach=disk", "did you mean dataset.cache", False),
    ("dataset.cache=disk dataset.cache_dir=null", 2, "dataset.cache_dir=null", "a folder", False),
    ("dataset.cache=disk dataset.cache_dir=/dev/null/x", 5, "dataset.cache_dir=/dev/null/x",
     "Not a directory", False),
    ("dataset.cache=disk dataset.cache_dir=/proc/none", 5, "dataset.cache_dir=/proc/none",
     "decoded examples are written there", False),
    ("dataset=digits dataset.cache=disk", 2, "dataset.cache=disk", "no such key", False),
]  # fmt: skip


@mistakes(KEYS)
def test_a_mistake_in_the_keys_is_one_line(
    shell: Shell, options: str, code: int, field: str, hint: str
) -> None:
    written(shell.folder / "photos", {"train": 4, "test": 4}, (8, 8))
    usual = ("dataset=folder", "dataset.shape=[3,8,8]", "model.input_size=null", "batch_size=4",
             "dataset.cache_dir=cache", "dataset.root=photos")  # fmt: skip
    if "digits" in options:
        usual = ("batch_size=4",)
    mistaken(shell, usual, options, code, field, hint)
    assert left(shell.folder / "cache") == []
