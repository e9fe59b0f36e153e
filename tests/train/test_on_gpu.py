"""What a training on a GPU does that one on a CPU cannot show."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from benchmarks import ours
from ninefold.checkpoint.store import read
from ninefold.engine.loop import train
from ninefold.errors import NumericsError
from ninefold.model.convnet import ConvNet
from ninefold.signals import Stop
from ninefold.train import build
from ninefold.train.training_run import TrainingRun, closing
from tests.conftest import metrics
from tests.kit import same as bitwise

SMALL = (
    "dataset=synthetic", "dataset.shape=[3,8,8]", "dataset.train_count=160", "batch_size=16",
    "model.net.width=8", "threads=1", "logger=jsonl", "log_every=1", "clock.warmup=3",
    "clock.sample=4", "epochs=2",
)  # fmt: skip
HALF = ("amp=scaler", "amp.dtype=float16", "amp.init_scale=1e7", "amp.growth_interval=3")
TIMES = ("train_seconds", "evaluate_seconds", "epoch_seconds", "config", "where")


class Dropping(ConvNet):
    """Drops a part of its features."""

    def forward(self, images: Tensor) -> Tensor:
        return super().forward(F.dropout(images, 0.2, self.training))


@dataclass
class Trained:
    """What a run ended with."""

    checkpoint: dict[str, Any]
    logged: dict[str, list[float]]


@contextmanager
def training(folder: Path, *overrides: str, resume: bool = False) -> Iterator[TrainingRun]:
    """A small run in `folder`."""
    text = ours.job(*SMALL, *overrides).text
    folder.mkdir(exist_ok=True)
    with build.running(text, folder, Stop(), resume=resume) as run:
        run.test = ours.first(run.test, 32)
        with closing(run):
            yield run


def trained(folder: Path, *overrides: str, resume: bool = False) -> Trained:
    with training(folder, *overrides, resume=resume) as run:
        train(run)
        checkpoints = run.writer.checkpoints
    logged = {key: metrics(folder, key) for key in ("loss", "lr", "scale", "grad_norm")}
    return Trained(read(checkpoints.newest()), logged)


def same(left: Trained, right: Trained) -> bool:
    """Whether weights, optimizer, averages, scaler, schedule, generators and logs are the same."""
    kept = [{k: v for k, v in each.checkpoint.items() if k not in TIMES} for each in (left, right)]
    return bitwise(*kept) and bitwise(left.logged, right.logged)


@pytest.fixture
def deterministic() -> Iterator[tuple[str, ...]]:
    """Overrides of a run whose arithmetic does not differ between two runs on a GPU."""
    yield ("device=cuda", "deterministic=true", "scheduler=none", "optimizer.lr=0.0009765625")
    torch.use_deterministic_algorithms(False)


@pytest.mark.gpu
def test_a_resumed_run_is_bitwise_the_whole_one(deterministic, tmp_path):
    job = (*deterministic, *HALF, f"model.net._target_={__name__}.Dropping")
    whole = trained(tmp_path / "whole", *job)
    trained(tmp_path / "parts", *job, "max_steps=7")
    parts = trained(tmp_path / "parts", *job, resume=True)
    assert 0 < whole.checkpoint["skipped"] < whole.checkpoint["step"]
    assert bitwise(whole.checkpoint["model"], parts.checkpoint["model"])
    assert bitwise(whole.checkpoint["rng"], parts.checkpoint["rng"])
    assert bitwise(whole.logged, parts.logged)


@pytest.mark.gpu
def test_the_first_bad_loss_leaves_the_weights_as_they_were(tmp_path):
    how = ("device=cuda", "optimizer.lr=1e30", "log_every=9", "clock.sample=0")
    with training(tmp_path, *how) as run, pytest.raises(NumericsError, match="at step 2"):
        train(run)
    weights = list(run.state.model.parameters())
    assert max(weight.abs().max().item() for weight in weights) > 1e29  # of the first step
    assert all(weight.isfinite().all() for weight in weights)
