"""Runs whose examples are kept: in a cache on disk, or in memory by a class of one's own."""

from pathlib import Path

import pytest

from tests.conftest import Shell, only_run, result
from tests.dataset.kit import photos as written

RUN = (
    "dataset=folder", "dataset.root=photos", "dataset.classes=2", "dataset.shape=[3,12,12]",
    "dataset.crop=2", "dataset.val=0.2", "model.input_size=null",
    "batch_size=8", "epochs=2", "threads=2", "launch.cpu_processes=2", "clock.warmup=0",
    "logger=quiet", "log_every=1",
)  # fmt: skip


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
    done = shell.train(*words, "max_steps=2", "resume=run", code=0)
    assert done.stderr == ""


KEPT = """
from torchvision.datasets import ImageFolder
from torchvision.transforms import Compose, PILToTensor, Resize


class RAMDataset:
    def __init__(self, dataset):
        self.dataset, self.classes, self.items = dataset, dataset.classes, {}

    def __len__(self):
        return len(self.dataset)

    def __getitem__(self, index):
        if index not in self.items:
            self.items[index] = self.dataset[index]
        return self.items[index]


def photos(root):
    return RAMDataset(ImageFolder(root, Compose([Resize((64, 64)), PILToTensor()])))
"""


@pytest.mark.slow
def test_a_dataset_that_keeps_its_items_in_memory_trains(shell, photos, monkeypatch):
    (shell.folder / "ram.py").write_text(KEPT)
    monkeypatch.setenv("PYTHONPATH", str(shell.folder))
    shell.train(
        "dataset=mapped", "dataset.flip=true",
        "dataset.train={_target_: ram.photos, root: photos/train}",
        "dataset.test={_target_: ram.photos, root: photos/test}",
        "max_steps=2", "batch_size=8", "logger=quiet", code=0,
    )  # fmt: skip
    found = result(only_run(shell.folder))
    assert (found["steps"], found["test_count"]) == (2, 18)
