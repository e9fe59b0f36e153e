"""A run with dataset.cache trains bitwise what the run without it does."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from ninefold.checkpoint.store import read
from ninefold.checkpoint.weights import weights
from tests.conftest import ROOT, Shell, metrics, result, wait_until

RUN = (
    "dataset=folder", "dataset.root=photos", "dataset.classes=2", "dataset.shape=[3,12,12]",
    "dataset.crop=2", "dataset.val=0.2", "dataset.cache_dir=cache", "model.input_size=null",
    "batch_size=8", "epochs=2", "threads=2", "launch.cpu_processes=2", "clock.warmup=0",
    "clock.probe=0", "logger=quiet", "log_every=1",
)  # fmt: skip


@pytest.fixture
def photos(shell: Shell) -> Path:
    """36 training and 9 test images of random bytes in each of two classes, 15x14."""
    draw, root = np.random.default_rng(0), shell.folder / "photos"
    for split, count in (("train", 36), ("test", 9)):
        for name in ("cat", "dog"):
            (root / split / name).mkdir(parents=True)
            for number in range(count):
                pixels = draw.integers(0, 256, (14, 15, 3), np.uint8)
                Image.fromarray(pixels).save(root / split / name / f"{number:02}.png")
    return root


def runs(folder: Path) -> list[Path]:
    return sorted(path.parent for path in folder.glob("*/result.json"))


def same(folders: list[Path]) -> None:
    """Check that all runs end with the same weights, losses and scores, bit by bit."""
    first, *others = folders
    expected = weights(read(first / "checkpoints" / "last.pt"))
    for other in others:
        found = weights(read(other / "checkpoints" / "last.pt"))
        assert all(torch.equal(expected[key], found[key]) for key in expected), other.name
        assert metrics(other, "loss") == metrics(first, "loss")
        assert result(other)["accuracy"] == result(first)["accuracy"]
        assert result(other)["val_loss"] == result(first)["val_loss"]


def test_a_sweep_trains_bitwise_the_same_from_files_disk_and_memory(
    shell: Shell, photos: Path
) -> None:
    done = shell.train("-m", *RUN, "dataset.cache=null,disk,ram", "hydra.sweep.dir=sweep")
    assert done.returncode == 0, done.stderr
    found = runs(shell.folder / "sweep")
    assert len(found) == 3
    same(found)
    assert done.stderr.count("cached photos: 90 files, ") == 2
    assert {path.name for path in (shell.folder / "cache").iterdir()} == {
        path.name for path in (shell.folder / "cache").iterdir() if len(path.name) == 64
    }


@pytest.mark.slow
def test_weights_are_the_same_for_every_cache_loader_and_number_of_processes(
    shell: Shell, photos: Path
) -> None:
    grid = (*RUN, "loader.workers=0,2", "parallel=none,ddp", "parallel.processes=auto")
    whole = shell.train("-m", *grid, "dataset.cache=null,disk,ram", "hydra.sweep.dir=whole")
    assert whole.returncode == 0, whole.stderr
    half = shell.train(
        "-m", *grid, "dataset.cache=ram", "dataset.cache_rate=0.5", "hydra.sweep.dir=half"
    )
    assert half.returncode == 0, half.stderr
    assert whole.stderr.count("cached photos") == 2  # one copy for all cells of a sweep
    assert "cached photos: 45 files" in half.stderr
    found = runs(shell.folder / "whole") + runs(shell.folder / "half")
    assert len(found) == 16
    for processes in (1, 2):
        same([run for run in found if result(run)["processes"] == processes])


@pytest.mark.slow
def test_torchrun_and_inline_runs_and_resumed_ones_use_the_cache(
    shell: Shell, photos: Path
) -> None:
    two = (*RUN, "parallel=ddp")
    plain = shell.train(*two, "parallel.processes=2", "hydra.run.dir=plain")
    assert plain.returncode == 0, plain.stderr
    for cache in ("disk", "ram"):
        done = shell.torchrun(*two, f"dataset.cache={cache}", f"hydra.run.dir=torchrun-{cache}")
        assert done.returncode == 0, done.stderr
        assert done.stderr.count("cached photos") == 1
        same([shell.folder / "plain", shell.folder / f"torchrun-{cache}"])
    alone = shell.train(*RUN, "hydra.run.dir=alone")
    assert alone.returncode == 0, alone.stderr
    inline = shell.train(*RUN, "dataset.cache=ram", "launch.inline=true", "hydra.run.dir=inline")
    assert inline.returncode == 0, inline.stderr
    begun = shell.train(*RUN, "max_steps=5", "dataset.cache=ram", "hydra.run.dir=resumed")
    assert begun.returncode == 0, begun.stderr
    resumed = shell.train(
        "resume=resumed", "max_steps=null", "dataset=folder", "dataset.cache=disk"
    )
    assert resumed.returncode == 0, resumed.stderr
    same([shell.folder / name for name in ("alone", "inline", "resumed")])
    evaluated = shell.evaluate("ckpt=resumed", "hydra.run.dir=evaluation")
    assert evaluated.returncode == 0, evaluated.stderr
    found = json.loads((shell.folder / "evaluation" / "evaluation.json").read_text())
    assert found["accuracy"] == result(shell.folder / "resumed")["accuracy"]
    assert "cached" not in evaluated.stderr  # one pass reads each image once
    again = shell.evaluate(
        "ckpt=resumed", "hydra.run.dir=again", "dataset=folder", "dataset.root=photos",
        "dataset.classes=2", "dataset.shape=[3,12,12]", "dataset.cache=ram",
    )  # fmt: skip
    assert again.returncode == 0, again.stderr
    assert "cached photos: 18 files" in again.stderr
    cached = json.loads((shell.folder / "again" / "evaluation.json").read_text())
    assert (cached["accuracy"], cached["loss"]) == (found["accuracy"], found["loss"])


@pytest.mark.slow
def test_a_cache_in_memory_is_held_once_for_two_processes(shell: Shell, photos: Path) -> None:
    wanted = {"dataset.shape": "[3,600,600]", "model.input_size": "12", "epochs": "10000"}
    kept = [word for word in RUN if word.partition("=")[0] not in wanted]  # 90 images of 1.08 MB
    run = [*kept, *(f"{key}={value}" for key, value in wanted.items())]
    run += ["parallel=ddp", "parallel.processes=2"]
    process = shell.start(
        str(ROOT / "train.py"), *run, "dataset.cache=ram", "hydra.run.dir=run", "loader.workers=2"
    )
    file = shell.folder / "run" / "metrics.jsonl"
    wait_until(lambda: file.exists() and file.read_text().count("test_loss") >= 2, process)
    total = 0
    for pid in shell.processes():
        text = Path(f"/proc/{pid}/smaps").read_text()
        for part in re.split(r"\n(?=[0-9a-f]+-[0-9a-f]+ )", text):
            if "memfd:ninefold-" in part:
                total += int(re.search(r"\nPss: +(\d+) kB", part)[1]) * 1024  # type: ignore[index]
    shell.kill(process)
    copy = 90 * 3 * 600 * 600
    print(f"sum of PSS of the mappings: {total / copy:.3f} of one copy")
    assert 0.9 * copy < total < 1.1 * copy


def test_the_processes_that_decode_import_no_torch() -> None:
    code = "import sys, ninefold.dataset.packing, ninefold.pack; assert 'torch' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], cwd=ROOT, check=True)
