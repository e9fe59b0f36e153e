"""The training loop."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from ninefold.batches import Batches, Preparation
from ninefold.checkpoint import Checkpoints
from ninefold.clock import Clock
from ninefold.dataset import Examples
from ninefold.errors import NumericsError
from ninefold.evaluation import Evaluation, evaluate
from ninefold.logger import Logger
from ninefold.parallel import Parallel, Place
from ninefold.state import State
from ninefold.task import Task


@dataclass
class Training:
    """All that a training run is made of, ready to go: plain objects, no configuration.

    forward: the wrapped network to call; state.model is the plain one to save.
    end_of_epoch: steps the scheduler, given the epoch's mean training loss.
    last_step: the optimizer step to stop after. config: the frozen job, kept in checkpoints.
    """

    state: State
    forward: nn.Module
    task: Task
    batches: Batches
    test: Examples
    prepare: Preparation
    parallel: Parallel
    place: Place
    end_of_epoch: Callable[[float], None]
    loggers: list[Logger]
    clock: Clock
    checkpoints: Checkpoints
    batch_size: int
    last_step: int
    log_every: int
    checkpoint_every: int
    warmup_steps: int
    workers: int
    config: str


def train(run: Training) -> Evaluation:
    """Train from where `run.state` stands to `run.last_step`; returns the last evaluation.

    Raises NumericsError if the loss is not finite at a log point or at the end of an epoch.
    """
    state, clock, steps_per_epoch = run.state, run.clock, run.batches.steps_per_epoch
    scaler, optimizer = state.scaler, state.optimizer

    def step(inputs: Tensor, targets: Tensor) -> Tensor:
        loss = run.task.loss(run.forward(inputs), targets)
        clock.mark("forward")
        scaler.scale(loss).backward()
        clock.mark("backward")
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()
        clock.mark("optimizer")
        return loss.detach()

    run.forward.train()
    warm_up(run, step)
    evaluation = None
    while state.step < run.last_step:
        epoch, position = divmod(state.step, steps_per_epoch)
        clock.start()
        for inputs, targets in run.batches.epoch(epoch, position, clock.begin_step, clock.mark):
            loss = step(inputs, targets)
            clock.end_step()
            state.loss_sum += loss
            state.step += 1
            if state.step % run.log_every == 0:
                with clock.paused():
                    log_step(run, loss)
            if state.step == run.last_step:
                break
            if due(run, state.step):
                with clock.paused():
                    mean_loss(run)  # a run that has diverged is not worth keeping
                    save(run, best=False)
        clock.stop()

        loss_of_epoch = mean_loss(run)
        if state.step % steps_per_epoch == 0:
            state.epoch_seconds.append(clock.seconds - sum(state.epoch_seconds))
            run.end_of_epoch(loss_of_epoch)
            state.loss_sum.zero_()
        evaluation = measure(run)
        best = evaluation.accuracy > state.best_accuracy
        state.best_accuracy = max(state.best_accuracy, evaluation.accuracy)
        save(run, best)
    return evaluation or measure(run)


def due(run: Training, step: int) -> bool:
    """Whether a checkpoint is due within the epoch; at its end one is written anyway."""
    every, ends_epoch = run.checkpoint_every, step % run.batches.steps_per_epoch == 0
    return every > 0 and step % every == 0 and not ends_epoch


def warm_up(run: Training, step: Callable[[Tensor, Tensor], Tensor]) -> None:
    """Take `run.warmup_steps` steps that leave no trace but warm caches, buffers and kernels.

    Weights, optimizer, scaler and random state are put back as they were.
    """
    before = run.state.capture(run.parallel, run.place)
    taken = 0
    while taken < run.warmup_steps:
        for inputs, targets in run.batches.epoch(0, 0, lambda: None, lambda phase: None):
            step(inputs, targets)
            taken += 1
            if taken == run.warmup_steps:
                break
    run.state.restore(before, run.place)
    for index in run.place.gpus:
        torch.cuda.reset_peak_memory_stats(index)


def log_step(run: Training, loss: Tensor) -> None:
    """Log the loss of the step just taken, over the whole global batch."""
    state = run.state
    value = run.parallel.total(loss).item() / run.place.world_size
    values = {
        "epoch": state.step / run.batches.steps_per_epoch,
        "loss": value,
        "lr": state.optimizer.param_groups[0]["lr"],
        "scale": state.scaler.get_scale(),
        "images_per_second": state.step * run.batch_size / run.clock.seconds,
    }
    for logger in run.loggers:
        logger.log(state.step, values)
    require_finite(value, run)


def mean_loss(run: Training) -> float:
    """The training loss of the epoch so far, averaged over its steps and over the processes.

    Every process must call it. Raises NumericsError if it is not finite.
    """
    total = run.parallel.total(run.state.loss_sum).item()
    steps = (run.state.step - 1) % run.batches.steps_per_epoch + 1
    value = total / run.place.world_size / steps
    require_finite(value, run)
    return value


def require_finite(loss: float, run: Training) -> None:
    if not math.isfinite(loss):
        raise NumericsError(
            "loss", loss, f"not finite at step {run.state.step}",
            f"the learning rate is {run.state.optimizer.param_groups[0]['lr']:g}, "
            f"the loss scale {run.state.scaler.get_scale():g}",
            "lower optimizer.lr or choose a wider amp.dtype",
        )  # fmt: skip


def measure(run: Training) -> Evaluation:
    """Evaluate on the test set and log it, outside the inner clock."""
    began = time.perf_counter()
    evaluation = evaluate(
        run.forward,
        run.test,
        batch_size=run.batch_size,
        prepare=run.prepare,
        task=run.task,
        parallel=run.parallel,
        place=run.place,
        workers=run.workers,
    )
    run.state.evaluate_seconds += time.perf_counter() - began
    values = {
        "epoch": run.state.step / run.batches.steps_per_epoch,
        "test_loss": evaluation.loss,
        "test_accuracy": evaluation.accuracy,
    }
    for logger in run.loggers:
        logger.log(run.state.step, values)
    return evaluation


def save(run: Training, best: bool) -> None:
    """Write a checkpoint. Every process must call it; rank 0 writes."""
    run.state.train_seconds = run.clock.seconds
    content = run.state.capture(run.parallel, run.place)
    if run.place.rank == 0:
        run.checkpoints.save({"format": 1, "config": run.config, **content}, best)


@contextmanager
def closing(loggers: list[Logger]) -> Iterator[None]:
    """Close the loggers at the end, whatever the end is."""
    try:
        yield
    finally:
        for logger in loggers:
            logger.close()
