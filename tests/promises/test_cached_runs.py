"""A run with dataset.cache trains bitwise what the run without it does."""

import re
import shlex
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
import torch

from ninefold.checkpoint.store import read
from ninefold.checkpoint.weights import weights
from tests.conftest import ROOT, Shell, metrics, result
from tests.dataset.kit import photos as written

RUN = (
    "dataset=folder", "dataset.root=photos", "dataset.classes=2", "dataset.shape=[3,12,12]",
    "dataset.crop=2", "dataset.val=0.2", "dataset.cache_dir=cache", "model.input_size=null",
    "batch_size=8", "epochs=2", "threads=2", "launch.cpu_processes=2", "clock.warmup=0",
    "logger=quiet", "log_every=1",
)  # fmt: skip


IN_MEMORY = "**Keep items in memory**"


@pytest.fixture
def photos(shell: Shell) -> Path:
    return written(shell.folder / "photos", {"train": 36, "test": 9}, (15, 14))


def same(folders: list[Path]) -> None:
    """Check that all runs end with the same weights, losses and scores, bit by bit."""
    first, *others = folders
    expected = weights(read(first / "checkpoints" / "last.pt"))
    for other in others:
        found = weights(read(other / "checkpoints" / "last.pt"))
        assert all(torch.equal(expected[key], found[key]) for key in expected), other.name
        assert metrics(other, "loss") == metrics(first, "loss")
        assert result(other)["score"] == result(first)["score"]
        assert result(other)["val_loss"] == result(first)["val_loss"]


def test_a_run_whose_file_names_a_relative_cache_folder_resumes_without_a_word(shell, photos):
    overlays = shell.folder / "conf" / "experiments"
    overlays.mkdir(parents=True)
    settings = "\n".join(f"  {key}" for key in ("cache: disk", "cache_dir: cache/"))
    (overlays / "mine.yaml").write_text(f"# @package _global_\ndataset:\n{settings}\n")
    own = [key for key in RUN if "cache_dir" not in key]
    words = ["--config-dir", "conf", *own, "experiments=mine", "device=cpu", "launch.inline=true"]
    shell.train(*words, "max_steps=1", "hydra.run.dir=run", code=0)
    shell.train(*words, "max_steps=2", "resume=run", code=0)


@pytest.mark.slow
def test_the_documented_dataset_trains_bitwise_as_the_one_it_keeps(shell, photos, monkeypatch):
    page = (ROOT / "docs" / "how-to" / "data.md").read_text().replace("\\\n", "")
    code, command = re.findall(
        r"```python\n(.*?)```\n\n(.*?)\n\n", page.partition(IN_MEMORY)[2], re.DOTALL
    )[0]
    setting, _, script, *words = shlex.split(command.replace("PHOTOS", "photos"))
    assert (setting, script) == ("PYTHONPATH=.", "train.py")
    (shell.folder / "ram.py").write_text(code)
    monkeypatch.setenv("PYTHONPATH", str(shell.folder))
    monkeypatch.syspath_prepend(shell.folder)
    reads: list[int] = []

    class Counted(list[str]):
        classes = ("a", "b")

        def __getitem__(self, index: Any) -> Any:
            reads.append(index)
            return super().__getitem__(index)

    kept = import_module("ram").RAMDataset(Counted("ab"))
    assert ([kept[0], kept[1], kept[0]], len(kept), reads) == (["a", "b", "a"], 2, [0, 1])
    common = (*words, "batch_size=8", "epochs=2", "logger=quiet", "log_every=1")
    shell.train(*common, "hydra.run.dir=kept", code=0)
    (shell.folder / "ram.py").write_text(code.replace("return RAMDataset(", "return ("))
    shell.train(*common, "hydra.run.dir=read", code=0)
    same([shell.folder / "read", shell.folder / "kept"])
