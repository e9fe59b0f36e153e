"""The recipes of docs/how-to/own-*.md run as they are printed."""

import re
from pathlib import Path

import numpy as np
import pytest

from tests.conftest import ROOT, Shell, metrics, only_run, result

PAGES = sorted((ROOT / "docs" / "how-to").glob("own-*.md"))
BLOCK = re.compile(r"^`(mine/[\w./]+)`:\n\n```\w+\n(.*?)^```$", re.MULTILINE | re.DOTALL)


@pytest.fixture
def mine(shell: Shell, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder `mine/` with every file that the pages print, importable."""
    for name, text in (found for page in PAGES for found in BLOCK.findall(page.read_text())):
        path = shell.folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    monkeypatch.setenv("PYTHONPATH", str(shell.folder / "mine"))
    return shell.folder / "mine"


def arrays(mine: Path, *shape: int) -> None:
    """Write images of this shape and their labels, 64 to train on and 32 to test on."""
    random = np.random.default_rng(0)
    for split, count in (("train", 64), ("test", 32)):
        images = random.integers(0, 256, (count, *shape)).astype(np.uint8)
        np.savez(mine / f"{split}.npz", images=images, labels=random.integers(0, 10, count))


def losses_of(shell: Shell, into: str, *overrides: str) -> list[float]:
    folder = shell.folder / into
    shell.train(
        "--config-dir", "mine/conf", f"hydra.run.dir={folder}", "accumulate=2", "max_steps=6",
        "epochs=1", "log_every=1", "dataset.limit=512", *overrides, code=0,
    )  # fmt: skip
    return metrics(folder, "loss")


def test_the_strategy_recipe_trains_as_one_process_does_with_micro_batches(shell, mine):
    alone = losses_of(shell, "alone", "parallel=none")
    together = losses_of(shell, "together", "parallel=averaged", "launch.cpu_processes=2")
    assert len(alone) == 6
    assert together == pytest.approx(alone, abs=1e-5)


def test_the_strategy_recipe_starts_all_processes_with_weights_that_one_has_loaded(shell, mine):
    losses_of(shell, "first", "parallel=none")
    alone = losses_of(shell, "alone", "parallel=none", "init=first")
    together = losses_of(
        shell, "together", "parallel=averaged", "launch.cpu_processes=2", "init=first"
    )
    assert together == pytest.approx(alone, abs=1e-5)


def test_the_dataset_model_precision_and_logger_recipes_train_together(shell, mine):
    arrays(mine, 1, 8, 8)
    shell.train(
        "--config-dir", "mine/conf", "model=perceptron", "dataset=arrays", f"dataset.root={mine}",
        "amp=brief", "logger=csvfile", "batch_size=16", "epochs=1", "log_every=1", code=0,
    )  # fmt: skip
    lines = (only_run(shell.folder) / "losses.csv").read_text().splitlines()
    assert [line.partition(",")[0] for line in lines] == ["1", "2", "3", "4", "score"]


def test_the_task_and_schedule_recipes_train_together(shell, mine):
    arrays(mine, 1, 8, 8)
    shell.train(
        "--config-dir", "mine/conf", "model=perceptron", "dataset=arrays", f"dataset.root={mine}",
        "dataset.val=0.25", "task=topk", "scheduler=decay", "optimizer.lr=0.01", "batch_size=8",
        "epochs=1", "max_steps=4", "log_every=1", code=0,
    )  # fmt: skip
    folder = only_run(shell.folder)
    assert metrics(folder, "lr") == pytest.approx([0.005, 0.01, 0.01, 0.009])
    found = result(folder)
    assert found["score_name"] == "top-k accuracy"
    assert (found["selection"], found["val_count"], found["test_count"]) == ("val", 16, 32)


def test_the_project_in_one_yaml_and_the_optimizer_with_groups_train(shell, mine):
    shell.train("--config-dir", "mine/conf", "experiments=whole", "max_steps=2",
                "hydra.run.dir=whole", code=0)  # fmt: skip
    assert result(shell.folder / "whole")["model"] == "MLP"
    shell.train("--config-dir", "mine/conf", "optimizer=lamb", "max_steps=2",
                "hydra.run.dir=lamb", code=0)  # fmt: skip
