"""The training loop."""

from __future__ import annotations

import contextlib
import logging
import math
import sys
import time
from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import islice
from signal import Signals
from typing import NoReturn

import torch
from torch import Tensor, nn

from ninefold.checkpoint.manifest import FORMAT
from ninefold.checkpoint.writer import Saver
from ninefold.dataset import Examples
from ninefold.dataset.batches import Batches, Preparation
from ninefold.errors import NumericsError, ResourceError
from ninefold.logger import Logger
from ninefold.measure.clock import Clock
from ninefold.measure.numerics import Numerics
from ninefold.measure.probe import Probe
from ninefold.measure.profiler import Profile
from ninefold.parallel import Parallel, Place, gather
from ninefold.signals import Stop, failure, held_back
from ninefold.task import Task
from ninefold.train.evaluation import Evaluation, Unfinished, evaluate
from ninefold.train.state import State

log = logging.getLogger(__name__)


@dataclass
class Training:
    """All that a training run is made of, ready to go: plain objects, no configuration.

    forward: the wrapped network to call; state.model is the plain one to save.
    end_of_epoch: steps the scheduler, given the epoch's mean training loss.
    last_step: the optimizer step to stop after. accumulate: equal parts that a batch is computed
    in. patience: epochs without a better test accuracy to stop after; None: never.
    checkpoint_every: steps; 0 = each epoch, None = only when told to stop.
    save_or_stop: whether a checkpoint that cannot be written ends the run.
    compiles: whether the first undone steps compile the network. profile: records some more.
    numerics: keeps what the first of them compute. ceiling_steps: undone steps on one batch.
    config: the frozen job, kept in checkpoints. compile_seconds, ceiling_images_per_second: what
    `warm_up` finds.
    """

    state: State
    forward: nn.Module
    task: Task
    batches: Batches
    test: Examples
    prepare: Preparation
    parallel: Parallel
    place: Place
    stop: Stop
    end_of_epoch: Callable[[float], None]
    loggers: list[Logger]
    clock: Clock
    saver: Saver
    batch_size: int
    accumulate: int
    last_step: int
    patience: int | None
    log_every: int
    checkpoint_every: int | None
    save_or_stop: bool
    warmup_steps: int
    compiles: bool
    profile: Profile | None
    workers: int
    config: str
    probe: Probe
    numerics: Numerics | None = None
    ceiling_steps: int = 0
    compile_seconds: float | None = None
    ceiling_images_per_second: float | None = None

    @property
    def evaluation_due(self) -> bool:
        """Whether an epoch or the run is trained to its end and not measured yet."""
        step, per_epoch = self.state.step, self.batches.steps_per_epoch
        return self.state.measured < step and (step % per_epoch == 0 or step >= self.last_step)

    @property
    def finished(self) -> bool:
        waited = self.state.measured - self.state.best_step
        tired = self.patience is not None and waited >= self.patience * self.batches.steps_per_epoch
        return not self.evaluation_due and (self.state.step >= self.last_step or tired)


def train(run: Training) -> Evaluation:
    """Train from where `run.state` stands to its end; returns the last evaluation.

    Raises NumericsError if a loss, a parameter or the loss scale is no longer usable, and
    Preempted or Interrupted, with a checkpoint written, if a process was told to stop.
    """
    state, clock, batches = run.state, run.clock, run.batches
    scaler, optimizer = state.scaler, state.optimizer

    def gradients(inputs: Tensor, targets: Tensor, share: float | None = None) -> Tensor:
        loss = run.task.loss(run.forward(inputs), targets)
        clock.mark("forward")
        scaler.scale(loss if share is None else loss * share).backward()
        clock.mark("backward")
        return loss.detach()

    compute = in_parts(run, gradients) if run.accumulate > 1 else gradients

    def step(inputs: Tensor, targets: Tensor) -> None:
        state.watch.see(compute(inputs, targets))
        scaler.step(optimizer)
        scaler.update()
        state.drop_gradients()
        state.average.update()
        clock.mark("optimizer")

    run.forward.train()
    warm_up(run, step)
    start_measuring(run)
    evaluation = None
    while not run.finished:
        if not run.evaluation_due:
            epoch, position = divmod(state.step, batches.steps_per_epoch)
            clock.start()
            for inputs, targets in batches.epoch(epoch, position, clock.begin_step, clock.mark):
                step(inputs, targets)
                clock.end_step()
                state.step += 1
                between_steps(run)
                if state.step == run.last_step:
                    break
            clock.stop()
        loss_of_epoch = mean_loss(run)  # there is no use in measuring a run that has diverged
        evaluation = measure(run)
        end_epoch(run, loss_of_epoch, evaluation)
    return evaluation or measure(run)


def in_parts(run: Training, gradients: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """`gradients` of a batch as the sum of those of its parts: the same, in less memory."""
    parts = run.accumulate

    def compute(inputs: Tensor, targets: Tensor) -> Tensor:
        losses = []
        pairs = zip(inputs.chunk(parts), targets.chunk(parts), strict=True)
        for number, (some, their) in enumerate(pairs, 1):
            with run.parallel.accumulating(run.forward, last=number == parts):
                losses.append(gradients(some, their, 1 / parts))
        return torch.stack(losses).mean()

    return compute


def between_steps(run: Training) -> None:
    """What is due after a step: a log line, a checkpoint, or the end if it was asked for.

    What a write beside the steps takes from them is in the inner clock; the wait for a copy is not.
    """
    step, every = run.state.step, run.checkpoint_every
    logs, stops = step % run.log_every == 0, run.stop.due(step)
    saves = every is not None and every > 0 and step % every == 0
    failed = run.saver.failed
    if not (logs or stops or saves or failed):
        return
    with run.clock.paused():
        if failed:
            settle(run)
        if logs:
            stops = log_step(run) or stops
        if stops:
            leave(run)
        if saves and not run.evaluation_due:  # it will be saved then
            mean_loss(run)  # a run that has diverged is not worth keeping
            save(run)


def end_epoch(run: Training, loss: float, evaluation: Evaluation) -> None:
    """Take note of an evaluation, let the scheduler step, and save."""
    state = run.state
    if state.step % run.batches.steps_per_epoch == 0:
        state.epoch_seconds.append(run.clock.seconds - sum(state.epoch_seconds))
        run.end_of_epoch(loss)
        state.watch.start_epoch()
    state.measured = state.step
    best = evaluation.accuracy > state.best_accuracy
    if best:
        state.best_accuracy, state.best_step = evaluation.accuracy, state.step
    if run.checkpoint_every is not None:
        save(run, best)


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


def log_step(run: Training) -> bool:
    """Log the loss of the step just taken, over the whole global batch.

    Every process must call it. Returns whether any of them has been told to stop. Raises
    NumericsError as `mean_loss`.
    """
    state, rows = run.state, losses(run)
    values = {
        "epoch": state.step / run.batches.steps_per_epoch,
        "loss": rows[:, LAST].mean().item(),
        "lr": state.optimizer.param_groups[0]["lr"],
        "scale": state.scaler.get_scale(),
        "images_per_second": state.step * run.batch_size / run.clock.seconds,
    }
    for logger in run.loggers:
        logger.log(state.step, values)
    require_finite(run, rows)
    return bool(rows[:, TOLD].any())


def mean_loss(run: Training) -> float:
    """The training loss of the epoch so far, averaged over its steps and over the processes.

    Every process must call it. Raises NumericsError if it is not finite or the scale collapsed.
    """
    rows = losses(run)
    require_finite(run, rows)
    steps = (run.state.step - 1) % run.batches.steps_per_epoch + 1
    return float(rows[:, TOTAL].sum() / (steps * len(rows) - rows[:, HELD].sum()))


TOTAL, HELD, LAST, TOLD = range(4)  # columns of `losses`


def losses(run: Training) -> Tensor:
    """Of each process its watch and the signal that told it to stop: float64 [processes, 4].

    Every process must call it. It waits for the device.
    """
    watch = run.state.watch
    watch.read()
    row = [watch.total, watch.held, watch.last, run.stop.signal]
    row_here = torch.tensor(row, dtype=torch.float64, device=run.place.device)
    return gather(row_here, run.parallel, run.place)


def require_finite(run: Training, rows: Tensor) -> None:
    """Raise NumericsError if a loss was not finite or the scale collapsed; rows: see `losses`."""
    scaler = run.state.scaler
    if not run.state.watch.skip and rows[:, HELD].any():
        raise first_bad_loss(run, rows)
    if scaler.collapsed():
        raise numerics(
            run, "scale", scaler.get_scale(), f"collapsed by step {run.state.step}",
            "gradients overflow at every scale",
        )  # fmt: skip


def first_bad_loss(run: Training, rows: Tensor) -> NumericsError:
    """What to say of a loss that was not finite; rows: see `losses`.

    Every process must call it: it is the weights of the first to see it that tell.
    """
    held = rows[:, HELD]
    rank = int(held.argmax())
    names = [name for name, _ in run.state.model.named_parameters()]
    bad = [not bool(torch.isfinite(p).all()) for p in run.state.model.parameters()]
    bad_on_rank = gather(torch.tensor(bad, dtype=torch.float32), run.parallel, run.place)[rank]
    found = [name for name, is_bad in zip(names, bad_on_rank.tolist(), strict=True) if is_bad]
    where = f"first in parameter {found[0]}" if found else "all parameters were finite before it"
    step = run.state.step - int(held.max()) + 1
    return numerics(run, "loss", rows[rank, TOTAL].item(), f"not finite at step {step}", where)


def numerics(run: Training, field: str, value: object, wrong: str, where: str) -> NumericsError:
    state = run.state
    epoch, lr = state.step / run.batches.steps_per_epoch, state.optimizer.param_groups[0]["lr"]
    scale = state.scaler.get_scale()
    return NumericsError(
        field, value, wrong,
        f"{where}; epoch {epoch:.4g}, learning rate {lr:g}, loss scale {scale:g}",
        "lower optimizer.lr, choose a wider amp.dtype or set on_nonfinite=skip",
    )  # fmt: skip


def measure(run: Training) -> Evaluation:
    """Evaluate on the test set, outside the inner clock, and log it unless it has been before.

    Raises NumericsError if the loss is not finite, and as `leave` if told to stop.
    """
    began = time.perf_counter()
    try:
        with run.state.average.in_place():
            evaluation = evaluate(
                run.forward,
                run.test,
                batch_size=run.batch_size,
                prepare=run.prepare,
                task=run.task,
                parallel=run.parallel,
                place=run.place,
                workers=run.workers,
                interrupted=lambda: run.stop.wanted,
            )
    except Unfinished:
        leave(run)
    run.state.evaluate_seconds += time.perf_counter() - began
    if not math.isfinite(evaluation.loss):
        raise numerics(
            run, "test_loss", evaluation.loss, f"not finite after step {run.state.step}",
            "the training loss was",
        )  # fmt: skip
    values = {
        "epoch": run.state.step / run.batches.steps_per_epoch,
        "test_loss": evaluation.loss,
        "test_accuracy": evaluation.accuracy,
        "seconds": run.clock.seconds,
    }
    if run.state.measured < run.state.step or run.state.step == 0:  # 0: of a run of no step
        for logger in run.loggers:
            logger.log(run.state.step, values)
    return evaluation


def leave(run: Training) -> NoReturn:
    """Save where the run stands, and end it on all processes together.

    Every process must call it. Raises Interrupted or Preempted.
    """
    told = torch.tensor(float(run.stop.signal), device=run.place.device)
    number = int(gather(told, run.parallel, run.place).max())
    mean_loss(run)
    save(run, must=True)
    # None leaves before it is written: GPUs' totals come at once, and who reads one has waited.
    run.parallel.total(torch.zeros((), device=run.place.device)).item()
    folder = run.saver.checkpoints.folder.parent
    raise failure(number)(
        "signal", Signals(number).name, "the run was stopped",
        f"it is saved at step {run.state.step} in {folder}",
        f"go on with: python train.py resume={folder}",
    )  # fmt: skip


def save(run: Training, best: bool = False, must: bool = False) -> None:
    """Copy where the run stands; rank 0 writes the copy while the training goes on.

    Every process must call it. What `must` be saved is on disk when it returns.
    Raises NumericsError if a parameter is not finite, and as `settle`.
    """
    run.state.train_seconds = run.clock.seconds
    content = run.state.content(run.parallel, run.place)
    if run.place.rank != 0:
        return
    for name, value in content["model"].items():
        if value.is_floating_point() and not finite(value):
            step = run.state.step
            raise numerics(run, "parameter", name, f"not finite after step {step}", "not saved")
    settle(run)
    run.saver.save({"format": FORMAT, "config": run.config, **content}, best)
    if must:
        settle(run, must)


def finite(values: Tensor) -> bool:
    """Whether all of them are; their sum is so only then, and takes a twentieth of the time."""
    return bool(values.sum().isfinite()) or bool(values.isfinite().all())


def settle(run: Training, must: bool = False) -> None:
    """Wait for the checkpoint that is being written, if there is one.

    Raises ResourceError if it cannot be written and it must, or the run is not to go on without.
    """
    try:
        run.saver.wait()
    except ResourceError as error:
        if must or run.save_or_stop:
            raise
        log.warning("%s", error)
        print(f"{error}".replace("error:", "warning:", 1), file=sys.stderr, flush=True)


@contextmanager
def closing(run: Training) -> Iterator[None]:
    """At the end, whatever it is, finish the last checkpoint and close the loggers.

    Raises as `settle`, unless there is another failure to tell of.
    """
    try:
        try:
            yield
            settle(run)
        except OSError:  # as of a full disk, of which a checkpoint's failure says more
            settle(run, must=True)
            raise
    except BaseException:
        for end in (run.saver.wait, *(logger.close for logger in run.loggers)):
            try:
                end()
            except Exception as error:
                log.warning("%s", error)
        raise
    for logger in run.loggers:
        logger.close()
