"""What the tests share: networks that are spread over ranks, and runs on such ranks."""

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from benchmarks import ours
from ninefold.engine.loop import train
from ninefold.engine.parallel import RankContext
from ninefold.engine.parallel.ddp import DDP
from ninefold.extensions.sharded.fsdp import FSDP
from ninefold.model.convnet import ConvNet
from ninefold.signals import Stop
from ninefold.task import Objective
from ninefold.task.classification import Classification
from ninefold.train import build
from ninefold.train.training_run import closing
from tests.conftest import metrics
from tests.parallel.ranks import on_ranks

BATCH = 8
STRATEGIES = {
    "none": ["parallel=none"],
    "ddp2": ["parallel=ddp", "parallel.processes=2"],
    "ddp4": ["parallel=ddp", "parallel.processes=4"],
    "fsdp2": ["parallel=fsdp", "parallel.processes=2"],
    "fsdp4": ["parallel=fsdp", "parallel.processes=4"],
}


@dataclass
class Made:
    """A small network that is spread, and its optimizer."""

    strategy: DDP | FSDP
    context: RankContext
    model: nn.Module
    wrapped: nn.Module
    optimizer: torch.optim.Optimizer

    def step(self, number: int = 0) -> Tensor:
        """Take a step on this process's part of a batch; returns its loss."""
        images, labels = batch(number)
        mine = slice(self.context.rank, None, self.context.world_size)
        loss: Tensor = self.wrapped(images[mine], labels[mine])
        loss.backward()
        self.optimizer.step()
        self.optimizer.zero_grad()
        return loss.detach()

    def whole(self) -> dict[str, Any]:
        """Its state: whole tensors on rank 0."""
        return self.strategy.state(self.model, self.optimizer, {})


def batch(number: int = 0) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(number)
    images = torch.randn(BATCH, 1, 8, 8, generator=generator)
    return images, torch.randint(0, 10, (BATCH,), generator=generator)


def network(seed: int = 0) -> ConvNet:
    torch.manual_seed(seed)
    return ConvNet(1, 12, width=8)  # rows that 4 divides


def plain(
    model: nn.Module, batches: Sequence[tuple[Tensor, Tensor]], lr: float
) -> tuple[list[float], dict[str, Tensor]]:
    """The losses and the weights of a network that one process trains on batches."""
    objective = Objective(model, Classification(10))
    optimizer = torch.optim.AdamW(model.parameters(), lr=lr)
    losses = []
    for each in batches:
        loss = objective(*each)
        assert isinstance(loss, Tensor)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(float(loss.detach()))
    return losses, model.state_dict()


@contextmanager
def made(model: nn.Module | None = None, **options: Any) -> Iterator[Made]:
    strategy = FSDP(device="cpu", **{"least": 1000, **options})
    with strategy.join() as context:
        model = network() if model is None else model
        wrapped = strategy.wrap(Objective(model, Classification(10)), context)
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, fused=True)
        yield Made(strategy, context, model, wrapped, optimizer)


def trained(
    strategy: str, job: Sequence[str], folder: Path, last: int | None = None, resume: bool = False
) -> list[float]:
    """The losses of all steps of a run in `folder`, which ends after step `last`.

    resume: the run in `folder` goes on, of which every other rank sees an empty folder.
    """
    made = ours.job(*job, *STRATEGIES[strategy], "logger=quiet", "log_every=1")
    folder.mkdir(exist_ok=True)

    def run() -> None:
        rank = os.environ.get("RANK", "0")
        own = folder if rank == "0" else folder / f"rank{rank}"
        with build.running(made.text, own, Stop(), resume=resume) as run:
            torch.set_num_threads(1)
            run.last_step = last or run.last_step
            with closing(run):
                train(run)

    on_ranks(made.processes, run, folder)
    return metrics(folder, "loss")
