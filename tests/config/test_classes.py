"""dataset.classes=null: the launcher counts them before the job is frozen."""

from pathlib import Path

import pytest

from tests.dataset.kit import photos
from tests.faults.runs import one_after_another


def job_of(root: Path) -> list[str]:
    return [
        "dataset=folder", f"dataset.root={root}", "dataset.shape=[3,8,8]", "batch_size=10",
        "device=cpu", "threads=1", "logger=quiet", "clock.warmup=0",
    ]  # fmt: skip


@pytest.mark.slow
def test_the_frozen_job_holds_the_number_of_class_folders_in_all_that_refers_to_it(shell):
    root = photos(shell.folder / "photos", {"train": 10, "test": 10})
    job = job_of(root)
    commands = [
        ["train.py", *job, "max_steps=2", "hydra.run.dir=outputs/runs/run"],
        ["train.py", *job, "resume=auto", "max_steps=3"],
        ["train.py", "resume=outputs/runs/run", "max_steps=4"],
        ["evaluate.py", "ckpt=outputs/runs/run", "device=cpu", "dataset=folder",
         f"dataset.root={root}", "dataset.shape=[3,8,8]"],
        ["train.py", *job, "dataset.classes=4"],
    ]  # fmt: skip
    *fine, four = one_after_another(shell, *commands)
    for done in fine:
        assert done.returncode == 0, done.stderr
    config = (shell.folder / "outputs" / "runs" / "run" / "config.yaml").read_text()
    assert config.count("classes: 2\n") == 3, "of dataset, task and model.net"
    assert "null" not in [line.partition("classes: ")[2] for line in config.splitlines()]
    assert (four.returncode, four.stderr.count("\n")) == (4, 1)
    assert "dataset.classes=4" in four.stderr
