"""What a checkpoint costs the steps: the wait for its copy, and the write beside them."""

from __future__ import annotations

import os
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import torch
from torchvision.models import alexnet

from benchmarks.measure import OURS, Bench, Row, Turns, at_most, ratio
from ninefold import training
from ninefold.amp import Amp
from ninefold.average import Average
from ninefold.batches import Batches, Preparation
from ninefold.checkpoint import Checkpoints
from ninefold.clock import Clock
from ninefold.dataset import Examples
from ninefold.parallel import Place
from ninefold.parallel.none import Single
from ninefold.saver import Saver
from ninefold.state import State
from ninefold.stop import Stop
from ninefold.task.classification import Classification
from ninefold.training import Training
from ninefold.watch import Watch

THREADS = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
PIXELS, BATCH, CLASSES = 64, 16, 10
SIZES = (
    f"AlexNet with AdamW, 684 MB, on the disk of the temporary folder; {THREADS} threads; images "
    f"of {PIXELS} pixels, batch {BATCH}."
)


@contextmanager
def job() -> Iterator[tuple[Training, Callable[[], None]]]:
    """A training run with a file and memory for its checkpoints already there, and its step."""
    torch.set_num_threads(THREADS)
    place, device = Place(0, 1, torch.device("cpu")), torch.device("cpu")
    model = alexnet(num_classes=CLASSES).to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    optimizer = torch.optim.AdamW(model.parameters(), fused=True)
    scaler = Amp(dtype="float32").grad_scaler(device)
    scheduler = torch.optim.lr_scheduler.ConstantLR(optimizer, factor=1)
    watch = Watch(optimizer, scaler, device, skip=False)
    images = np.random.default_rng(0).integers(0, 256, (BATCH, 3, PIXELS, PIXELS), np.uint8)
    examples = Examples(images, np.arange(BATCH, dtype=np.int64) % CLASSES)
    prepare = Preparation(3, None, None, None, False, 0, torch.channels_last)
    batches = Batches(examples, BATCH, 0, prepare, place)
    with tempfile.TemporaryDirectory() as folder:
        run = Training(
            state=State(model, optimizer, scheduler, scaler, Average(model, None), watch),
            forward=model,
            task=Classification(CLASSES),
            batches=batches,
            test=examples,
            prepare=prepare,
            parallel=Single(),
            place=place,
            stop=Stop(),
            end_of_epoch=lambda loss: None,
            loggers=[],
            clock=Clock(device, sample=0),
            saver=Saver(Checkpoints(Path(folder, "checkpoints"), keep=2), device),
            batch_size=BATCH,
            accumulate=1,
            last_step=1,
            patience=None,
            log_every=1,
            checkpoint_every=0,
            save_or_stop=True,
            warmup_steps=0,
            workers=0,
            compiles=False,
            profile=None,
            config="",
        )

        def step() -> None:  # as the loop's
            for inputs, targets in batches.epoch(0, 0, lambda: None, lambda phase: None):
                loss = run.task.loss(model(inputs), targets)
                scaler.scale(loss).backward()
                watch.see(loss.detach())
                scaler.step(optimizer)
                scaler.update()
                optimizer.zero_grad()
                run.state.step += 1

        step()
        run.saver.reserve(run.state.content(run.parallel, place))
        yield run, step


def writing() -> bool:
    return any(thread.name == "checkpoint" for thread in threading.enumerate())


@contextmanager
def stalls(handicap: bool) -> Iterator[Turns]:
    """Seconds that a save keeps the step loop. Handicapped ours waits for the disk as well."""
    with job() as (run, _):

        def stall(must: bool) -> float:
            began = time.perf_counter()
            training.save(run, must=must)
            took = time.perf_counter() - began
            run.saver.wait()
            return took

        yield {OURS: lambda: stall(must=handicap), "synchronous": lambda: stall(must=True)}


@contextmanager
def steps(handicap: bool) -> Iterator[Turns]:
    """Seconds of a step while a checkpoint is being written, and while none is."""
    with job() as (run, step):

        def beside() -> float:
            training.save(run)
            began = time.perf_counter()
            times = []
            while writing():
                step()
                times.append(time.perf_counter() - began)
            run.saver.wait()
            whole = max(1, len(times) - 1)  # the last one went on after the write
            return times[whole - 1] / whole

        def alone() -> float:
            began = time.perf_counter()
            for _ in range(8):
                step()
            return (time.perf_counter() - began) / 8

        yield {OURS: beside, "no write": alone}


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
