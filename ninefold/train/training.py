"""A training run's parts, and what it does between steps: log, check, save, stop."""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from signal import Signals
from typing import NoReturn

import torch
from torch import Tensor, nn

from ninefold.checkpoint.manifest import FORMAT
from ninefold.checkpoint.writer import Saver
from ninefold.dataset import Examples
from ninefold.dataset.batches import Batches
from ninefold.dataset.preparation import Preparation
from ninefold.errors import NumericsError, ResourceError
from ninefold.logger import Logger
from ninefold.measure.clock import Clock
from ninefold.measure.numerics import Numerics
from ninefold.measure.probe import Probe
from ninefold.measure.profiler import Profile
from ninefold.parallel import Parallel, Place, gather
from ninefold.signals import Stop, failure
from ninefold.task import Objective
from ninefold.train.state import State

log = logging.getLogger(__name__)


@dataclass
class Training:
    """All that a training run is made of, ready to go: plain objects, no configuration.

    forward: the wrapped objective to call, (inputs, targets) to a loss; objective: the same one not
    wrapped. state.model is the plain network to save.
    val: examples to select on (patience, best.pt), None to select on `test`.
    end_of_epoch: steps the scheduler, given the epoch's mean training loss.
    last_step: the optimizer step to stop after. accumulate: equal parts that a batch is computed
    in. patience: epochs without a better score to stop after; None: never.
    checkpoint_every: steps; 0 = each epoch, None = only when told to stop.
    save_or_stop: whether a checkpoint that cannot be written ends the run.
    compiles: whether the first undone steps compile the network. profile: records some more.
    numerics: keeps what the first of them compute. ceiling_steps: undone steps on one batch.
    config: the frozen job, kept in checkpoints. compile_seconds, ceiling_images_per_second: what
    `warm_up` finds.
    """

    state: State
    forward: nn.Module
    objective: Objective
    batches: Batches
    val: Examples | None
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
