"""What takes turns on a GPU: ninefold's own training step, and the raw loop's.

Each is a context manager of (overrides, steps) that yields a turn: it takes `steps` steps, after
some that are not timed, with the device synchronized at both ends, and returns seconds a step.
"""

from __future__ import annotations

import copy
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from itertools import islice
from typing import Any

import numpy as np
import torch
from omegaconf import OmegaConf

from benchmarks import ours as our_training
from benchmarks.rivals import raw_gpu
from ninefold.dataset import Examples
from ninefold.engine.amp import Amp
from ninefold.engine.loop import stepper
from ninefold.train import build
from ninefold.train.training_run import TrainingRun
from ninefold.train.turns import endless

Turn = Callable[[], float]
COMMON = ("checkpoint.every=null", "epochs=1000000", "logger=quiet", "clock.sample=0")
LEAD = 5  # steps of a turn that are not timed: the GPU may have been idle


def synchronize(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def turn(device: torch.device, steps: int, train: Callable[[int], Any]) -> Turn:
    """A turn of `train`, a function that takes so many steps."""

    def take() -> float:
        train(min(LEAD, steps))
        synchronize(device)
        began = time.perf_counter()
        train(steps)
        synchronize(device)
        return (time.perf_counter() - began) / steps

    return take


@contextmanager
def stepping(overrides: Sequence[str]) -> Iterator[tuple[TrainingRun, Callable[[int], None]]]:
    """The run of `overrides`, warmed up, and a call that takes so many of its steps.

    It does all that training does from step to step, log points and ends of epochs included; only
    evaluations are left out.
    """
    with our_training.training(*COMMON, *overrides) as run:
        run.forward.train()
        step = stepper(run)
        run.before_training(step)
        batches = endless(run)
        run.clock.start()

        def take(count: int) -> None:
            for inputs, targets in islice(batches, count):
                step(inputs, targets)
                run.clock.end_step()
                run.state.step += 1
                run.after_step()

        yield run, take


@contextmanager
def ours(overrides: Sequence[str], steps: int) -> Iterator[Turn]:
    """What `python train.py OVERRIDES` does."""
    with stepping(overrides) as (run, take):
        yield turn(run.context.device, steps, take)


@contextmanager
def raw(overrides: Sequence[str], steps: int) -> Iterator[Turn]:
    """The raw loop on batches from the host."""
    loop, examples, batch = raw_loop(overrides)
    batches = raw_gpu.rows_of(len(examples), batch)
    yield turn(
        loop.device,
        steps,
        lambda count: raw_gpu.from_host(loop, examples, islice(batches, count)),
    )


@contextmanager
def raw_resident(overrides: Sequence[str], steps: int) -> Iterator[Turn]:
    """The raw loop on a set that is on the device."""
    loop, examples, batch = raw_loop(overrides)
    images, targets = on_device(examples, loop.device)
    batches = raw_gpu.rows_of(len(examples), batch)
    yield turn(
        loop.device,
        steps,
        lambda count: raw_gpu.from_device(loop, images, targets, islice(batches, count)),
    )


@contextmanager
def raw_graph(overrides: Sequence[str], steps: int) -> Iterator[Turn]:
    """The raw step as one CUDA graph, on a set that is on the device: the least that is possible.

    On a CPU, where there are no such graphs, it is `raw_resident`.
    """
    if not torch.cuda.is_available():
        with raw_resident(overrides, steps) as plain:
            yield plain
        return
    loop, examples, batch = raw_loop(overrides, capturable=True)
    images, targets = on_device(examples, loop.device)
    graphed = raw_gpu.Graphed(loop, images[:batch], targets[:batch])
    batches = raw_gpu.rows_of(len(examples), batch)
    yield turn(
        loop.device, steps, lambda count: graphed.train(images, targets, islice(batches, count))
    )


def raw_loop(
    overrides: Sequence[str], capturable: bool = False
) -> tuple[raw_gpu.Loop, Examples, int]:
    """A raw loop with the network, layout, data and precision of `overrides`; its batch size."""
    job = OmegaConf.create(our_training.job(*COMMON, *overrides).text)
    with our_training.training(*COMMON, *overrides) as run:
        device = run.context.device
        model, layout = copy.deepcopy(run.state.model), run.prepare.memory_format
    examples = build.built_dataset(job).load("train")
    amp: Amp = build.make(job.amp, "amp").on(device)
    optimizer = torch.optim.AdamW(
        model.parameters(), lr=0.001, weight_decay=0.01, fused=True, capturable=capturable
    )
    loop = raw_gpu.Loop(
        model=model.train(),
        optimizer=optimizer,
        scaler=torch.amp.GradScaler(device.type, enabled=amp.scaler),
        device=device,
        dtype=None if amp.dtype == "float32" else getattr(torch, amp.dtype),
        memory_format=layout,
        size=job.model.input_size,
    )
    return loop, examples, job.batch_size


def on_device(examples: Examples, device: torch.device) -> tuple[torch.Tensor, torch.Tensor]:
    every = np.arange(len(examples))
    images, targets = (torch.from_numpy(of[every]) for of in (examples.inputs, examples.targets))
    return images.to(device), targets.to(device)


KINDS: dict[str, Callable[[Sequence[str], int], AbstractContextManager[Turn]]] = {
    "ours": ours,
    "raw": raw,
    "raw_resident": raw_resident,
    "raw_graph": raw_graph,
}
