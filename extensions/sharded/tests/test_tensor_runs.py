"""Runs with parallel=tensor train what others train, and go on with another strategy."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.conftest import Shell, metrics, result
from tests.faults.runs import one_after_another

pytestmark = pytest.mark.slow  # quicker: test_tensor.py

TENSOR = ["parallel=tensor", "parallel.processes=2", "optimizer.fused=false"]
VIT = ["model=timm", "model.net.name=test_vit", "model.input_size=32"]
BLOCKS = ["parallel.colwise=[blocks.0.mlp.fc1,blocks.1.mlp.fc1]",
          "parallel.rowwise=[blocks.0.mlp.fc2,blocks.1.mlp.fc2]"]  # fmt: skip
TRUST = ["model.net._target_=tests.faults.net.Net"]
NET = ["model=convnet", *TRUST, "model.net.width=32", "+model.net.plain=true"]
LAYERS = ["parallel.colwise=[first]", "parallel.rowwise=[last]"]
JOB = ["threads=1", "log_every=1", "logger=quiet", "clock.warmup=1",
       "dataset.limit=96", "batch_size=15", "epochs=9", "ema=0.9", "optimizer.lr=1e-4"]  # fmt: skip
STEPS = 5


@pytest.fixture(
    scope="module",
    params=[
        pytest.param((NET, LAYERS, TRUST), id="two layers"),
        pytest.param((VIT, BLOCKS, []), id="vit", marks=pytest.mark.slow),
    ],
)
def runs(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run without parallelism, and one that goes there and back."""
    model, plan, trust = request.param
    tensor = [*TENSOR, *plan]
    shell = Shell(tmp_path_factory.mktemp("tensor"))
    for done in one_after_another(
        shell,
        ["train.py", *JOB, *model, f"max_steps={STEPS}", "hydra.run.dir=none"],
        ["train.py", *JOB, *model, *tensor, "max_steps=2", "hydra.run.dir=back"],
        ["evaluate.py", "ckpt=back", *TENSOR[:2], *plan, *model, "hydra.run.dir=evaluated"],
        ["train.py", "resume=back", *trust, "parallel=none", "max_steps=3"],
        ["train.py", "resume=back", *trust, *tensor, f"max_steps={STEPS}"],
    ):
        assert done.returncode == 0, done.stderr
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
