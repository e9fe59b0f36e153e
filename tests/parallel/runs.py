"""Training runs on ranks forked from this process: of many, each then starts in a moment."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

import torch

from benchmarks import ours
from ninefold.engine.loop import train
from ninefold.signals import Stop
from ninefold.train import build
from ninefold.train.training_run import closing
from tests.conftest import metrics
from tests.parallel.ranks import on_ranks

STRATEGIES = {
    "none": ["parallel=none"],
    "ddp2": ["parallel=ddp", "parallel.processes=2"],
    "ddp4": ["parallel=ddp", "parallel.processes=4"],
    "fsdp2": ["parallel=fsdp", "parallel.processes=2"],
    "fsdp4": ["parallel=fsdp", "parallel.processes=4"],
    "hsdp2x2": ["parallel=fsdp", "parallel.processes=4", "parallel.replicas=2"],
    "kept": ["parallel=fsdp", "parallel.processes=2", "parallel.reshard_after_forward=false"],
}


def trained(
    strategy: str, job: Sequence[str], folder: Path, last: int | None = None, resume: bool = False
) -> list[float]:
    """The losses of all steps of a run in `folder`, which ends after step `last`.

    resume: the run in `folder` goes on, of which every other rank sees an empty folder.
    """
    made = ours.job(*job, *STRATEGIES[strategy], "logger=quiet", "log_every=1")
    folder.mkdir(exist_ok=True)

    def run() -> None:
        own = folder if os.environ["RANK"] == "0" else folder / f"rank{os.environ['RANK']}"
        with build.running(made.text, own, Stop(), resume=resume) as run:
            torch.set_num_threads(1)
            run.last_step = last or run.last_step
            with closing(run):
                train(run)

    on_ranks(made.processes, run, folder)
    return metrics(folder, "loss")
