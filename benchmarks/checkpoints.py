"""What a checkpoint costs the steps: the wait for its copy, and the concurrent write."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from benchmarks import ours
from benchmarks.measure import OURS, Bench, Row, Turns, at_most, ratio
from ninefold.train import training_run
from ninefold.train.training_run import TrainingRun

PIXELS, BATCH = 64, 16
JOB = (
    "model=alexnet", "model.input_size=null", "dataset=synthetic",
    f"dataset.shape=[3,{PIXELS},{PIXELS}]", f"dataset.train_count={BATCH}", f"batch_size={BATCH}",
)  # fmt: skip
SIZES = (
    "AlexNet with AdamW, 684 MB, on the disk of the temporary folder; all CPU threads; images "
    f"of {PIXELS} pixels, batch {BATCH}."
)


@contextmanager
def job() -> Iterator[tuple[TrainingRun, Callable[[], None]]]:
    """A training run with memory for its checkpoints already there, and its step."""
    with ours.training(*JOB) as run:
        state = run.state

        def step() -> None:  # as the loop's
            for inputs, targets in run.batches.epoch(0):
                loss = run.forward(inputs, targets)
                state.scaler.scale(loss).backward()
                state.losses.watch(loss.detach())
                state.losses.add(loss.detach())
                state.scaler.step(state.optimizer)
                state.scaler.update()
                state.drop_gradients()
                state.step += 1

        step()
        run.writer.reserve(state.content(run.parallel, run.context))
        yield run, step


def writing() -> bool:
    return any(thread.name == "checkpoint" for thread in threading.enumerate())


@contextmanager
def stalls(handicap: bool) -> Iterator[Turns]:
    """Seconds that a save blocks the step loop. With the handicap, ours also waits for the disk."""
    with job() as (run, _):

        def stall(must: bool) -> float:
            began = time.perf_counter()
            training_run.save(run, must=must)
            took = time.perf_counter() - began
            run.writer.wait()
            return took

        yield {OURS: lambda: stall(must=handicap), "synchronous": lambda: stall(must=True)}


@contextmanager
def steps(handicap: bool) -> Iterator[Turns]:
    """Seconds of a step while a checkpoint is being written, and while none is."""
    with job() as (run, step):

        def during_write() -> float:
            training_run.save(run)
            began = time.perf_counter()
            times = []
            while writing():
                step()
                times.append(time.perf_counter() - began)
            run.writer.wait()
            whole = max(1, len(times) - 1)  # the last one ended after the write
            return times[whole - 1] / whole

        def alone() -> float:
            began = time.perf_counter()
            for _ in range(8):
                step()
            return (time.perf_counter() - began) / 8

        yield {OURS: during_write, "no write": alone}


BENCHES = [
    Bench(
        "checkpoint-stall",
        f"A save of a run that has saved before, forced to disk before the next turn. {SIZES}",
        stalls,
        [
            Row(
                "a checkpoint: how long the steps stand still",
                "a synchronous save",
                ratio(OURS, "synchronous"),
                at_most(0.15),
            )
        ],
    ),
    Bench(
        "checkpoint-beside",
        f"Steps from the beginning to the end of a write, and 8 without one. {SIZES}",
        steps,
        [
            Row(
                "throughput while a checkpoint is written",
                "no checkpoint",
                ratio("no write", OURS),
            )
        ],
    ),
]
