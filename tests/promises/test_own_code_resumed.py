"""A run is resumed bitwise whatever a user's code draws, keeps and orders, or is refused."""

import json
import os
import random
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from ninefold.checkpoint.store import read
from tests.conftest import metrics, result
from tests.faults.runs import leaves


class Net(nn.Module):
    """Layers of equal shapes: an optimizer's state fits each of them."""

    def __init__(self, channels: int, classes: int, width: int) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            nn.Flatten(), nn.Linear(64 * channels, width), *(Layer(width) for _ in range(6))
        )
        self.last = nn.Linear(width, classes)

    def forward(self, inputs: Tensor) -> Tensor:
        return self.last(self.layers(inputs))


class Layer(nn.Linear):
    def __init__(self, width: int) -> None:
        super().__init__(width, width)

    def forward(self, inputs: Tensor) -> Tensor:
        return inputs + super().forward(inputs).relu()


class Drawing(Net):
    """Draws in training and in evaluations."""

    def forward(self, inputs: Tensor) -> Tensor:
        return super().forward(inputs + 0.1 * torch.randn_like(inputs))


class Tied(Net):
    """One weight under two names, beside a mask."""

    def __init__(self, *arguments: Any, **keywords: Any) -> None:
        super().__init__(*arguments, **keywords)
        self.layers[-1].weight = self.layers[-2].weight
        self.register_buffer("mask", torch.full((2, 2), -torch.inf).triu(1))


class Relative(nn.Module):
    """A loss relative to its running mean, which is a buffer."""

    mean: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("mean", torch.ones(()))

    def forward(self, output: Tensor, target: Tensor) -> Tensor:
        losses = nn.functional.cross_entropy(output, target, reduction="none")
        if self.training:
            self.mean.lerp_(losses.detach().mean(), 0.3)
        return losses / self.mean


def shuffled(values: Iterable[Any]) -> list[Any]:
    """In another order in each process, as of a set of tensors, whose order is their addresses'."""
    found = list(values)
    random.Random(os.getpid()).shuffle(found)
    return found


def optimizer(parameters: Iterable[nn.Parameter], **options: Any) -> torch.optim.Optimizer:
    """One with groups of its own, in an order that the test may name."""
    parameters = list(parameters)
    half = [value for value in parameters if value.ndim > 1]
    rest = [value for value in parameters if value.ndim == 1]
    groups = [{"params": shuffled(half)}, {"params": shuffled(rest), "lr": 0.002}]
    return torch.optim.Adam(groups[:: int(os.environ.get("ORDER", "1"))])


NET = [f"model.net._target_={__name__}.Net", "model.net.width=16"]
JOB = ["dataset=synthetic", "dataset.train_count=96", "dataset.test_count=16", "device=cpu",
       "dataset.shape=[1,8,8]", "batch_size=6", "log_every=1",
       "logger=quiet"]  # fmt: skip
STRATEGY = {
    "none": ["parallel=none", "threads=1", "clock.warmup=1"],
    "ddp": ["parallel=ddp", "parallel.processes=2", "threads=2", "clock.warmup=1"],
    # DDP sorts its buckets anew after its first step, and the sum of three depends on their order.
    "three": ["parallel=ddp", "parallel.processes=3", "threads=3", "clock.warmup=0"],
}
OWN = {
    "network": NET,
    "optimizer": [*NET, f"optimizer._target_={__name__}.optimizer"],
    "loss with a state": [
        *NET, "optimizer=sgd", f"task.loss={{_target_: {__name__}.Relative}}",
    ],
    "network that draws": [f"model.net._target_={__name__}.Drawing", NET[1]],
    "averaged weight of two names": [f"model.net._target_={__name__}.Tied", NET[1], "ema=0.9"],
}  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize(
    ("own", "strategy"),
    [
        ("network", "three"), ("optimizer", "none"), ("optimizer", "ddp"),
        ("loss with a state", "ddp"), ("network that draws", "none"),
    ],
)  # fmt: skip
def test_a_run_of_own_code_is_resumed_bitwise(shell, own, strategy):
    """20 steps in a row, and 10 that are resumed for 10 more, must be the same to the last bit."""
    job = [*OWN[own], *JOB, *STRATEGY[strategy]]
    for words in (
        [*job, "max_steps=20", "hydra.run.dir=straight"],
        [*job, "max_steps=10", "hydra.run.dir=stopped"],
        ["resume=stopped", *OWN[own], "max_steps=20"],
    ):
        shell.train(*words, code=0)
    straight, stopped = shell.folder / "straight", shell.folder / "stopped"
    assert metrics(stopped, "loss") == metrics(straight, "loss")
    assert state_of(stopped) == state_of(straight)


@pytest.mark.parametrize(
    "own", ["network that draws", "loss with a state", "averaged weight of two names"]
)
def test_a_run_of_own_code_is_evaluated_as_in_it(shell, own):
    job = [*OWN[own], *JOB, *STRATEGY["none"], "max_steps=2"]
    shell.train(*job, "hydra.run.dir=run", code=0)
    shell.evaluate("ckpt=run", "trust=true", "batch_size=6", "hydra.run.dir=again", code=0)
    found = json.loads((shell.folder / "again" / "evaluation.json").read_text())
    trained = result(shell.folder / "run")["test_loss"]
    assert found["loss"] == pytest.approx(trained, rel=1e-6)


def state_of(run: Path) -> list[tuple[str, str]]:
    content = read(run / "checkpoints" / "last.pt")
    found = [*leaves({key: content[key] for key in ("model", "optimizer", "task")})]
    assert any(".optimizer.state." in name for name, _ in found)
    return found


@pytest.mark.slow
def test_groups_in_another_order_than_the_checkpoints_are_refused(shell):
    given = OWN["optimizer"]
    options = [*given, *JOB, *STRATEGY["none"], "max_steps=2", "hydra.run.dir=run"]
    shell.train(*options, env={"ORDER": "1"}, code=0)
    done = shell.train("resume=run", *given, "max_steps=4", env={"ORDER": "-1"}, code=3)
    assert "its optimizer has other groups of parameters, or in another order; " in done.stderr
    assert done.stderr.count("\n") == 1
    shell.train("resume=run", *given, "max_steps=4", env={"ORDER": "1"}, code=0)
