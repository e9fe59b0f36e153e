"""Runs with parallel=tensor train what others train, and go on with another strategy."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.conftest import Shell, metrics, result
from tests.faults.runs import one_after_another

pytestmark = pytest.mark.slow  # quicker: test_tensor.py

TENSOR = ["parallel=tensor", "parallel.processes=2", "optimizer.fused=false"]
TRUST = ["model.net._target_=tests.faults.net.Net"]
NET = ["model=convnet", *TRUST, "model.net.width=32", "+model.net.plain=true"]
LAYERS = ["parallel.colwise=[first]", "parallel.rowwise=[last]"]
JOB = ["threads=1", "log_every=1", "logger=quiet", "clock.warmup=1",
       "dataset.limit=96", "batch_size=15", "epochs=9", "ema=0.9", "optimizer.lr=1e-4"]  # fmt: skip
STEPS = 5


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run without parallelism, and one that goes there and back."""
    tensor = [*TENSOR, *LAYERS]
    shell = Shell(tmp_path_factory.mktemp("tensor"))
    commands = [
        ["train.py", *JOB, *NET, f"max_steps={STEPS}", "hydra.run.dir=none"],
        ["train.py", *JOB, *NET, *tensor, "max_steps=2", "hydra.run.dir=back"],
        ["evaluate.py", "ckpt=back", *TENSOR[:2], *LAYERS, *NET, "hydra.run.dir=evaluated"],
        ["train.py", "resume=back", *TRUST, "parallel=none", "max_steps=3"],
        ["train.py", "resume=back", *TRUST, *tensor, f"max_steps={STEPS}"],
    ]
    one_after_another(shell, *commands, code=0)
    return shell.folder


def test_the_losses_are_those_without_it_there_and_back(runs: Path) -> None:
    """15 examples in a batch, which 2 processes do not divide: both take all of them."""
    losses = metrics(runs / "back", "loss")
    assert losses == pytest.approx(metrics(runs / "none", "loss"), abs=1e-5)
    assert len(losses) == STEPS


def test_both_processes_compute_each_batch(runs: Path) -> None:
    found, none = result(runs / "back"), result(runs / "none")
    assert (found["processes"], found["replicas"]) == (2, 1)
    assert found["test_count"] == none["test_count"]


def test_an_evaluation_with_it_counts_each_example_once(runs: Path) -> None:
    found = json.loads((runs / "evaluated" / "evaluation.json").read_text())
    assert found["count"] == result(runs / "none")["test_count"]
