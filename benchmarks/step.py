"""Overhead of a training step over the raw loop, in time and memory."""

from __future__ import annotations

import resource
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib import import_module
from itertools import count
from typing import Any

import numpy as np
import torch
from torch import nn
from torchvision.models import alexnet

from benchmarks import ours
from benchmarks.apart import apart
from benchmarks.measure import OURS, Array, Bench, Figures, Row, Turns, at_most, ratio
from benchmarks.rivals import raw
from ninefold.dataset import Examples
from ninefold.dataset.synthetic import Synthetic
from ninefold.engine.batches import epoch_order

BATCH = 64
FOREVER = ("checkpoint.every=null", "epochs=1000000", f"batch_size={BATCH}")
MLP_STEPS, ALEXNET_STEPS = 2000, 2
LOG_EVERY = 50  # steps: the default
MLP = (
    *FOREVER,
    "threads=1",
    "dataset=synthetic",
    "dataset.shape=[1,8,8]",
    f"dataset.train_count={BATCH * MLP_STEPS}",
    "model.net._target_=benchmarks.step.mlp",
    "model.net.width=64",
    "model.memory_format=contiguous_format",
)
ALEXNET = (
    *FOREVER,
    "model=alexnet",
    "dataset=synthetic",
    "dataset.shape=[3,227,227]",
    f"dataset.train_count={BATCH * 10}",
    f"dataset.test_count={BATCH}",
)
RIVALS = ("Fabric", "Accelerate", "Lightning")
SILENT = "ninefold, no log points"


def mlp(channels: int = 1, classes: int = 10, width: int = 64) -> nn.Module:
    """An MLP for 8x8 images, so small that its step is mostly overhead."""
    return nn.Sequential(
        nn.Flatten(), nn.Linear(64 * channels, width), nn.ReLU(), nn.Linear(width, classes)
    )


@contextmanager
def small(handicap: bool) -> Iterator[Turns]:
    """Seconds per step of the tiny MLP, one epoch per turn."""
    from accelerate import Accelerator
    from lightning.fabric import Fabric

    from benchmarks.rivals import accelerate_loop, fabric_loop, lightning_loop
    from benchmarks.rivals.loader import loader

    with (
        ours.training(*MLP) as run,
        ours.training(*MLP, "log_every=1000000") as silent,
    ):
        if handicap:
            ours.slow_down(run, 50e-6)
        examples = ours.examples_of(run.batches.source)
        fabric, accelerator = Fabric(accelerator="cpu", devices=1), Accelerator(cpu=True)
        plain, theirs, others = mlp(), mlp(), mlp()
        optimizer = adamw(plain)
        with_fabric = fabric.setup(theirs, adamw(theirs))
        with_accelerate = accelerator.prepare(others, adamw(others))
        lightning = lightning_loop.Module(mlp())
        epochs = count()

        def batches() -> np.ndarray:
            return epoch_order(0, next(epochs), len(examples)).reshape(-1, BATCH)

        def timed(train: Callable[[], None]) -> Callable[[], float]:
            def turn() -> float:
                began = time.perf_counter()
                train()
                return (time.perf_counter() - began) / MLP_STEPS

            return turn

        yield {
            OURS: lambda: ours.seconds_a_step(run, MLP_STEPS),
            SILENT: lambda: ours.seconds_a_step(silent, MLP_STEPS),
            "raw": timed(lambda: raw.train(plain, optimizer, examples, batches())),
            "Fabric": timed(
                lambda: fabric_loop.train(*with_fabric, loader(examples, batches()), fabric)
            ),
            "Accelerate": timed(
                lambda: accelerate_loop.train(
                    *with_accelerate, loader(examples, batches()), accelerator
                )
            ),
            "Lightning": lambda: (
                lightning_loop.seconds(lightning, loader(examples, batches())) / MLP_STEPS
            ),
        }


def adamw(model: nn.Module) -> torch.optim.Optimizer:
    """AdamW with the values of conf/optimizer/adamw.yaml."""
    return torch.optim.AdamW(model.parameters(), lr=0.001, weight_decay=0.01, fused=True)


def overhead(name: str) -> Callable[[Figures], Array]:
    """Microseconds per step more than the raw loop."""
    return lambda figures: (figures[name] - figures["raw"]) * 1e6


def share_of_best(figures: Figures) -> Array:
    """Our overhead as a share of the smallest of the rivals' in the same round."""
    return overhead(OURS)(figures) / np.min([overhead(name)(figures) for name in RIVALS], axis=0)


@contextmanager
def large(handicap: bool) -> Iterator[Turns]:
    """Seconds per step of AlexNet at 227 pixels."""
    with ours.training(*ALEXNET) as run:
        if handicap:
            ours.slow_down(run, 0.05)
        train = plain_alexnet(ours.examples_of(run.batches.source))

        def plain() -> float:
            began = time.perf_counter()
            train(ALEXNET_STEPS)
            return (time.perf_counter() - began) / ALEXNET_STEPS

        yield {OURS: lambda: ours.seconds_a_step(run, ALEXNET_STEPS), "raw": plain}


def plain_alexnet(examples: Examples) -> Callable[[int], None]:
    """The raw loop in channels_last; a call takes the given number of steps."""
    model = alexnet(num_classes=10).to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    optimizer = adamw(model)
    batches = epoch_order(0, 0, len(examples)).reshape(-1, BATCH)
    return lambda steps: raw.train(model, optimizer, examples, batches[:steps], torch.channels_last)


@contextmanager
def memory(handicap: bool) -> Iterator[Turns]:
    """Peak memory of a process in bytes, minus its peak after the imports."""

    def peak(ready: Callable[..., Any], *arguments: Any) -> Callable[[], float]:
        def turn() -> float:
            with apart(ready, *arguments) as once:
                return once()

        return turn

    yield {OURS: peak(our_peak, handicap), "raw": peak(raw_peak)}


@contextmanager
def our_peak(handicap: bool) -> Iterator[Callable[[], float]]:
    before = imported_bytes()
    with ours.training(*ALEXNET) as run:
        kept = torch.ones(100_000_000 if handicap else 0)
        ours.seconds_a_step(run, 3)
        yield lambda: peak_bytes() - before
        del kept


@contextmanager
def raw_peak() -> Iterator[Callable[[], float]]:
    before = imported_bytes()
    dataset = Synthetic(train_count=BATCH * 10, test_count=BATCH, shape=(3, 227, 227))
    train, test = dataset.load("train"), dataset.load("test")
    plain_alexnet(train)(3)
    yield lambda: peak_bytes() - before
    del test


def imported_bytes() -> float:
    """The peak so far, after importing all that either contestant imports."""
    for name in ("torch._dynamo", "ninefold.logger.tensorboard"):
        import_module(name)
    return peak_bytes()


def peak_bytes() -> float:
    """The allocator's peak on a GPU, or the process's peak resident set."""
    if torch.cuda.is_available():
        return float(torch.cuda.max_memory_allocated())
    unit = 1 if sys.platform == "darwin" else 1024
    return float(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit)


BENCHES = [
    Bench(
        name="step-mlp",
        conditions=(
            f"A turn is {MLP_STEPS} steps of an MLP (64-64-10), batch {BATCH}, fused AdamW, one "
            "thread, the batches gathered from bytes in memory. Ours is train.py's default: "
            f"console, metrics.jsonl and TensorBoard each {LOG_EVERY} steps, phases timed, all of "
            "it counted, only evaluation is not. The raw loop does none of it. Fabric, Accelerate "
            "and Lightning's barebones Trainer do not log; their DataLoader is given whole batches."
        ),
        contestants=small,
        rows=[
            Row("step of a tiny MLP: overhead", "raw loop", overhead(OURS), at_most(15), "µs"),
            Row("the same without log points", "raw loop", overhead(SILENT), unit="µs"),
            Row(
                "the overhead as a share of the rival's",
                "best of Fabric, Accelerate, Lightning",
                share_of_best,
                at_most(1 / 3),
            ),
            *(Row("the rival's overhead", name, overhead(name), unit="µs") for name in RIVALS),
        ],
    ),
    Bench(
        name="step-alexnet",
        conditions=(
            f"A turn is {ALEXNET_STEPS} steps of AlexNet at 227 pixels, batch {BATCH}, fp32, "
            "channels_last and fused AdamW in both; ours with its default logging and timing."
        ),
        contestants=large,
        rows=[Row("step of AlexNet at 227", "raw loop", ratio(OURS, "raw"), at_most(1.005))],
    ),
    Bench(
        name="step-memory",
        conditions=(
            "A turn is a new process that takes 3 steps of AlexNet at 227 pixels, batch "
            f"{BATCH}: its peak memory beyond what it had after its imports."
        ),
        contestants=memory,
        rows=[Row("peak memory, AlexNet at 227", "raw loop", ratio(OURS, "raw"), at_most(1.0))],
        pairs=3,
    ),
]
