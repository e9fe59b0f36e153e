"""Runs with parallel=fsdp train what others train, and runs go on with another strategy."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from ninefold.checkpoint.store import read
from ninefold.checkpoint.weights import load_weights, weights
from ninefold.model.convnet import ConvNet
from ninefold.model.resnet18 import resnet18
from tests.conftest import Shell, metrics, result
from tests.extensions.sharded.made import STRATEGIES, trained
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


def test_a_run_that_goes_on_with_fsdp_learns_the_same(runs: Path) -> None:
    losses = metrics(runs / "there", "loss")
    assert losses == pytest.approx(metrics(runs / "none", "loss"), abs=1e-6, rel=0)
    assert len(losses) == STEPS
    norms = metrics(runs / "there", "grad_norm")  # of the whole, by which it is clipped
    assert norms == pytest.approx(metrics(runs / "none", "grad_norm"), rel=1e-5)
    (note,) = (note for note in result(runs / "there")["notes"] if "instead of" in note)
    assert "with parallel=fsdp and 2 process(es) instead of none and 1:" in note


def test_checkpoints_of_fsdp_are_whole_under_the_plain_names(runs: Path) -> None:
    ours, theirs = (read(runs / name / "checkpoints" / "last.pt") for name in ("none", "there"))
    for key in ("model", "average"):
        assert list(ours[key]) == list(theirs[key])
        for name, value in ours[key].items():
            torch.testing.assert_close(theirs[key][name], value, atol=1e-6, rtol=1e-5)
    assert load_weights(ConvNet(1, 10, width=8), weights(theirs)).complete
    for index, values in ours["optimizer"]["state"].items():
        for name, value in values.items():
            their = theirs["optimizer"]["state"][index][name]
            torch.testing.assert_close(their, value, atol=1e-6, rtol=1e-4)


def test_results_say_that_parameters_are_contiguous(runs: Path) -> None:
    found = result(runs / "there")
    assert found["memory_format"] == "contiguous_format"
    assert any("model.memory_format=auto is contiguous here" in note for note in found["notes"])


def test_an_evaluation_with_fsdp_finds_what_training_found(runs: Path) -> None:
    found = json.loads((runs / "evaluated" / "evaluation.json").read_text())
    trained = result(runs / "there")
    assert (found["accuracy"], found["count"]) == (trained["accuracy"], trained["test_count"])
    assert found["loss"] == pytest.approx(trained["test_loss"], rel=1e-5)


class InFloat64(nn.Module):
    """ResNet-18 in float64, where sums in another order stay within 1e-9.

    In float32 batches of few examples that are normalized let rounding errors grow, to 0.09 of a
    loss.
    """

    def __init__(self, **options: Any) -> None:
        super().__init__()
        self.net = resnet18(**options).double()

    def forward(self, images: Tensor) -> Tensor:
        found: Tensor = self.net(images.double())
        return found


# At length: models, optimizers, precisions, with everything that works on gradients and weights

ALL = ["dataset.limit=320", "accumulate=2", "ema=0.9", "clip_grad_norm=1"]
SGD = ["optimizer=sgd", "optimizer.fused=false", "optimizer.lr=0.01"]
# As with fsdp: in another format convolutions round otherwise, by 0.1 after 50 steps of ResNet-18.
RESNET = ["dataset=synthetic", "dataset.train_count=320", "dataset.test_count=16",
          "dataset.shape=[3,8,8]", "model=resnet18", "model.memory_format=contiguous_format",
          "model.net._target_=tests.extensions.sharded.test_fsdp_runs.InFloat64"]  # fmt: skip
CASES = {
    "adamw": (ALL, 1e-5, 50),
    "sgd with a scaler": ([*ALL, *SGD, "amp=scaler", "amp.dtype=float32"], 1e-5, 50),
    # In bfloat16 losses of 16 examples differ by 0.03 between none and ddp, too.
    "autocast": ([*ALL, "amp=autocast", "batch_size=32"], 0.03, 50),
    "scaler": ([*ALL, "amp=scaler", "batch_size=32"], 0.03, 50),
    "resnet18": ([*RESNET, *SGD], 1e-9, 10),  # by two processes: a step takes long in float64
}


@pytest.mark.slow
@pytest.mark.parametrize("name", CASES)
def test_the_first_losses_are_those_without_it(tmp_path: Path, name: str) -> None:
    """Of ResNet-18 they are ddp's, as each process normalizes its own part of a batch."""
    own, tolerance, steps = CASES[name]
    short = ["threads=1", "clock.warmup=0", "clock.sample=0", "epochs=50", f"max_steps={steps}"]
    job = [*short, *([] if "batch_size=32" in own else ["batch_size=16"]), *own]
    found: dict[str, list[float]] = {}
    for strategy in STRATEGIES:
        two = strategy in ("fsdp2", "kept")
        reference = "ddp2" if name == "resnet18" else "none"
        if strategy in ("none", "ddp2", "ddp4") or (name == "resnet18" and not two):
            continue
        for each in {strategy, reference} - found.keys():
            found[each] = trained(each, job, tmp_path / each)
        worst = max(abs(a - b) for a, b in zip(found[strategy], found[reference], strict=True))
        print(f"{name}: {strategy} to {reference} {worst:.2g}")
        assert len(found[strategy]) == steps
        assert worst <= tolerance, strategy
