"""Cost of the parallel strategies in one process; speed of two."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from benchmarks import ours
from benchmarks.measure import OURS, Bench, Row, Turns, at_least, at_most, ratio
from ninefold.config.spec import RunSpec
from ninefold.launch import forkserver
from ninefold.launch import run as execution
from ninefold.result import Result

STEPS = 2
COMMON = ("threads=2", "batch_size=64", "checkpoint.every=null")
RESNET = (*COMMON, "model=resnet18", "dataset=synthetic", "dataset.train_count=2048", "epochs=1000")
CELLS = {
    OURS: "parallel=none",
    "dp": "parallel=dp",
    "ddp": "parallel=ddp",
}


@contextmanager
def one_process(handicap: bool) -> Iterator[Turns]:
    """Seconds per step of each cell; the handicap slows those that are compared with another."""
    with ExitStack() as stack:
        runs = {
            name: stack.enter_context(ours.training(*RESNET, cell)) for name, cell in CELLS.items()
        }
        if handicap:
            for name in ("dp", "ddp"):
                ours.slow_down(runs[name], 0.02)
        yield {name: lambda run=run: ours.seconds_a_step(run, STEPS) for name, run in runs.items()}


def launched(*overrides: str) -> Result:
    """A run in worker processes, as train.py starts them."""
    job = ours.job(*overrides)
    with tempfile.TemporaryDirectory() as folder:
        forkserver.start(job.resolved)
        execution.start(RunSpec("train", job.text, Path(folder), time.time()), job)
        return Result.read(Path(folder))


@contextmanager
def two_processes(handicap: bool) -> Iterator[Turns]:
    """Images per second by the inner clock."""
    common = (*COMMON, "dataset=synthetic", "dataset.train_count=9600", "epochs=1")
    ddp = ("parallel=ddp", "parallel.processes=2", f"log_every={1 if handicap else 10}")

    def speed(*cell: str) -> float:
        found = launched(*common, *cell).examples_per_second
        assert found is not None
        return found

    yield {OURS: lambda: speed(*ddp), "none": lambda: speed("parallel=none")}


BENCHES = [
    Bench(
        name="scaling-one",
        conditions=(
            f"A turn is {STEPS} steps of ResNet-18 at 32 pixels, batch 64, two threads, in one "
            "process that has all cells."
        ),
        contestants=one_process,
        rows=[
            Row("dp on one device: step", "none", ratio("dp", OURS), at_most(1.005)),
            Row("ddp with one process: step", "none", ratio("ddp", OURS), at_most(1.02)),
        ],
    ),
    Bench(
        name="scaling-two",
        conditions=(
            "A turn is a run: 150 steps of the convnet at 32 pixels, global batch "
            "64, in two processes of one thread each or in one of two; images per second by the "
            "inner clock."
        ),
        contestants=two_processes,
        rows=[
            Row(
                "ddp on two processes: throughput",
                "none on two threads",
                ratio(OURS, "none"),
                at_least(0.85),
            )
        ],
    ),
]
