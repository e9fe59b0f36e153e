"""Steps before the training that leave no trace in it: warm caches, compile, profile."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Generator
from itertools import islice

import torch
from torch import Tensor

from ninefold.dataset.batches import Batches
from ninefold.parallel import gather
from ninefold.signals import held_back
from ninefold.train.training import Training


def warm_up(run: Training, step: Callable[[Tensor, Tensor], None]) -> None:
    """Take `run.warmup_steps` steps that leave no trace but warm caches, buffers and kernels.

    They compile the network if it is to be. Before and after them go those that are recorded or
    timed, if that is asked for. Weights, optimizer, scaler and random state are put back as they
    were.
    """
    numerics = run.numerics if run.state.step == 0 else None
    if not (run.warmup_steps or run.profile or numerics or run.ceiling_steps):
        return
    before = run.state.capture(run.parallel, run.place)
    seconds = []
    # A compiler that a step starts is not to be sent what is sent to a group of processes.
    with contextlib.closing(first_batches(run.batches)) as batches, held_back():

        def timed(inputs: Tensor, targets: Tensor) -> None:
            began = time.perf_counter()
            step(inputs, targets)
            run.place.synchronize()
            seconds.append(time.perf_counter() - began)

        if numerics is not None:
            numerics.record(batches, timed, run.state, run.parallel, run.place)
        for inputs, targets in islice(batches, run.warmup_steps):
            timed(inputs, targets)
        if run.profile is not None:
            run.profile.record(batches, step)
        if run.ceiling_steps:
            run.ceiling_images_per_second = ceiling(run, step, *next(batches))
    if run.compiles:  # what these steps took beyond the last of them
        run.compile_seconds = sum(seconds) - len(seconds) * seconds[-1]
    content = run.state.content(run.parallel, run.place)  # the optimizer's state is there by now
    if run.place.rank == 0 and run.checkpoint_every is not None:
        run.saver.reserve(content)
    run.state.restore(before, run.place)


def ceiling(
    run: Training, step: Callable[[Tensor, Tensor], None], inputs: Tensor, targets: Tensor
) -> float:
    """Images per second of training over and over on one batch that is on the device already."""
    step(inputs, targets)  # the first of all, where there is no warm-up, would be slow
    run.place.synchronize()
    began = time.perf_counter()
    for _ in range(run.ceiling_steps):
        step(inputs, targets)
    run.place.synchronize()
    seconds = torch.tensor(time.perf_counter() - began, device=run.place.device)
    slowest = float(gather(seconds, run.parallel, run.place).max())
    return run.ceiling_steps * run.batch_size / slowest


def start_measuring(run: Training) -> None:
    """Probe the machine, and forget the memory that all up to here took."""
    run.probe.take()
    for index in run.place.gpus:
        torch.cuda.reset_peak_memory_stats(index)


def first_batches(batches: Batches) -> Generator[tuple[Tensor, Tensor], None, None]:
    """Those of the first epoch, over and over."""
    while True:
        yield from batches.epoch(0, 0, lambda: None, lambda phase: None)
