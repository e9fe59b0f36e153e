"""Runs with parallel=fsdp train what others train, and runs go on with another strategy."""

import json
from pathlib import Path

import pytest

from tests.conftest import Shell, metrics, result
from tests.faults.runs import one_after_another

FSDP = ["parallel=fsdp", "parallel.processes=2", "parallel.least=1000"]
JOB = ["model.net.width=8", "threads=1", "log_every=1", "logger=quiet", "clock.warmup=1",
       "dataset.limit=128", "epochs=9", "ema=0.9", "accumulate=2",
       "clip_grad_norm=1"]  # fmt: skip
STEPS = 7
COMMANDS = [
    ["train.py", *JOB, f"max_steps={STEPS}", "hydra.run.dir=none"],
    ["train.py", *JOB, "max_steps=3", "hydra.run.dir=there"],
    ["train.py", "resume=there", *FSDP, f"max_steps={STEPS}"],
    ["evaluate.py", "ckpt=there", *FSDP, "batch_size=50", "hydra.run.dir=evaluated"],
]


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run without parallelism, and one that goes on with fsdp."""
    shell = Shell(tmp_path_factory.mktemp("sharded"))
    one_after_another(shell, *COMMANDS, code=0)
    return shell.folder


def test_a_run_that_goes_on_with_fsdp_learns_the_same(runs):
    losses = metrics(runs / "there", "loss")
    assert losses == pytest.approx(metrics(runs / "none", "loss"), abs=1e-6, rel=0)
    assert len(losses) == STEPS
    norms = metrics(runs / "there", "grad_norm")  # of the whole, by which it is clipped
    assert norms == pytest.approx(metrics(runs / "none", "grad_norm"), rel=1e-5)
    (note,) = (note for note in result(runs / "there")["notes"] if "instead of" in note)
    assert "resumed with parallel=fsdp instead of none, processes=2 instead of 1:" in note


def test_results_say_that_parameters_are_contiguous(runs):
    found = result(runs / "there")
    assert found["memory_format"] == "contiguous_format"
    assert any("model.memory_format=auto is contiguous here" in note for note in found["notes"])


def test_an_evaluation_with_fsdp_finds_what_training_found(runs):
    found = json.loads((runs / "evaluated" / "evaluation.json").read_text())
    trained = result(runs / "there")
    assert (found["score"], found["count"]) == (trained["score"], trained["test_count"])
    assert found["loss"] == pytest.approx(trained["test_loss"], rel=1e-5)
