"""Caches of decoded examples when disks are full, processes are killed and commands are stopped."""

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
from tests.faults.refusals import refused
from tests.faults.writer import disk

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
    shell.run(*PACK, env=ENV, code=0)
    (folder,) = left(shell.folder / "cache")
    assert np.load(folder / "train.inputs.npy")[-1].any()
    return {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in folder.iterdir()}


def packing(shell: Shell, calls: str, fault: str, *more: str) -> subprocess.CompletedProcess[str]:
    """Pack with a fault injected into one of these system calls."""
    inject = ("-e", f"trace={calls}", "-e", f"inject={calls}:{fault}")
    strace = ["strace", *more, "-qq", "-o", "/dev/null", *inject, sys.executable, *PACK]
    env = {**os.environ, **ENV}
    return subprocess.run(strace, cwd=shell.folder, env=env, capture_output=True, text=True)


@pytest.mark.slow
def test_a_second_command_waits_for_the_one_that_packs(shell, photos):
    first = shell.start(*PACK, env=ENV)
    wait_for_packing(shell.folder / "cache", first)
    second = shell.run(*PACK, env=ENV)
    _, stderr = first.communicate()
    assert first.returncode == second.returncode == 0, stderr + second.stderr
    assert second.stderr == f"waiting for another process that packs {photos.name}\n"
    assert "cached photos: 60 examples" in stderr


@pytest.mark.slow
def test_a_signal_while_packing_leaves_nothing(shell, photos):
    process = shell.start(*PACK, env=ENV)
    wait_for_packing(shell.folder / "cache", process)
    os.killpg(process.pid, signal.SIGINT)  # as a terminal does: to all processes of the command
    stderr = shell.finish(process, code=130).stderr
    assert re.fullmatch(r"error: signal=SIGINT: .*; .*; .*\n", stderr), stderr
    assert left(shell.folder / "cache") == []
    assert not shell.survivors()
    packed(shell)


@pytest.mark.slow
def test_a_killed_packing_command_leaves_nothing_that_the_next_does_not_remove(shell, photos):
    process = shell.start(*PACK, env=ENV)
    wait_for_packing(shell.folder / "cache", process)
    shell.kill(process)
    assert any(path.suffix == ".tmp" for path in left(shell.folder / "cache"))
    os.utime(photos / "train" / "cat" / "0.png", ns=(1, 1))  # another cache, with another key
    first = packed(shell)
    assert len(left(shell.folder / "cache")) == 1
    (shell.folder / "cache").rename(shell.folder / "other")
    assert packed(shell) == first


@pytest.mark.slow
@pytest.mark.parametrize("number", [1, 2])
def test_a_command_killed_at_any_rename_is_followed_by_one_that_is_right(shell, photos, number):
    expected = packed(shell)
    (folder,) = left(shell.folder / "cache")
    os.truncate(folder / "train.inputs.npy", 1000)  # so that the old one has to make room
    done = packing(shell, "rename,renameat,renameat2", f"signal=KILL:when={number}")
    assert done.returncode in (-signal.SIGKILL, 128 + signal.SIGKILL), done.stderr
    assert not shell.survivors()
    assert packed(shell) == expected
    assert len(left(shell.folder / "cache")) == 1


@pytest.mark.slow
@pytest.mark.parametrize(("where", "when"), [("fallocate", "1"), ("pwrite64", "5+")])
def test_a_disk_that_is_full_while_packing_is_one_line(shell, photos, where, when):
    done = packing(shell, where, f"error=ENOSPC:when={when}", "-f")
    refused(done, 5, "dataset.cache_dir=", hint=": No space left on device; ")
    assert left(shell.folder / "cache") == []
    assert not (shell.folder / "outputs").exists()
    packed(shell)


@pytest.mark.slow
def test_a_file_system_that_cannot_set_room_aside_is_packed_on(shell, photos):
    done = packing(shell, "fallocate", "error=EOPNOTSUPP", "-f")
    assert done.returncode == 0, done.stderr
    packed(shell)


@pytest.mark.slow
def test_a_disk_that_cannot_be_written_to_is_refused(shell, photos):
    with disk(shell.folder / "disk", "size=64m,ro"):
        done = shell.train(*RUN, "dataset.cache=disk", "dataset.cache_dir=disk/c")
    refused(done, 5, f"dataset.cache_dir={shell.folder}/disk/c: Read-only file system; ")
