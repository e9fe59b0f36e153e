"""Runs whose examples are kept: in a cache on disk, or in memory by a dataset of the docs."""

import re
import shlex
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import ROOT, Shell
from tests.dataset.kit import photos as written

RUN = (
    "dataset=folder", "dataset.root=photos", "dataset.classes=2", "dataset.shape=[3,12,12]",
    "dataset.crop=2", "dataset.val=0.2", "model.input_size=null",
    "batch_size=8", "epochs=2", "threads=2", "launch.cpu_processes=2", "clock.warmup=0",
    "logger=quiet", "log_every=1",
)  # fmt: skip


IN_MEMORY = "**Keep items in memory**"


@pytest.fixture
def photos(shell: Shell) -> Path:
    return written(shell.folder / "photos", {"train": 36, "test": 9}, (15, 14))


def test_a_run_whose_file_names_a_relative_cache_folder_resumes_without_a_word(shell, photos):
    overlays = shell.folder / "conf" / "experiments"
    overlays.mkdir(parents=True)
    settings = "\n".join(f"  {key}" for key in ("cache: disk", "cache_dir: cache/"))
    (overlays / "mine.yaml").write_text(f"# @package _global_\ndataset:\n{settings}\n")
    words = ["--config-dir", "conf", *RUN, "experiments=mine", "device=cpu", "launch.inline=true"]
    shell.train(*words, "max_steps=1", "hydra.run.dir=run", code=0)
    shell.train(*words, "max_steps=2", "resume=run", code=0)


@pytest.mark.slow
def test_the_documented_dataset_reads_each_item_once_and_trains(shell, photos, monkeypatch):
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
    more = ("max_steps=2", "batch_size=8", "logger=quiet", "hydra.run.dir=kept")
    shell.train(*words, *more, code=0)
