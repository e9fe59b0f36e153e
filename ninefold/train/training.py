"""The parts of a training run, and what happens between its steps: logging, checking, saving."""

from __future__ import annotations

import logging
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from signal import Signals
from typing import NoReturn

import torch
from torch import Tensor, nn

from ninefold.checkpoint.manifest import FORMAT
from ninefold.checkpoint.writer import Writer
from ninefold.dataset.batches import Batches
from ninefold.dataset.loader import LoaderPlan, Source
from ninefold.dataset.preparation import Preparation
from ninefold.errors import NumericsError, ResourceError, Unended, located, one_line
from ninefold.logger import Logger
from ninefold.measure.clock import Clock
from ninefold.measure.link import Link
from ninefold.measure.memory import PeakMemory
from ninefold.measure.numerics import Numerics
from ninefold.measure.probe import Probe
from ninefold.measure.profiler import Profile
from ninefold.parallel import Parallel, Place, gather, here
from ninefold.places import typed_as
from ninefold.result import IMAGES, Counted, Result, Score
from ninefold.secrets import redact
from ninefold.signals import Stop, failure
from ninefold.task import Objective, scoring
from ninefold.train.clip import NoClip
from ninefold.train.cuda_graph import NoGraph
from ninefold.train.state import State

log = logging.getLogger(__name__)


@dataclass
class Training:
    """The parts of a training run: plain objects, no configuration.

    forward: the wrapped objective, from (inputs, targets) to the mean loss.
    objective: the network and its task, not wrapped; state.model is the plain network to save.
    val: the examples that patience and best.pt are selected on; None: those of `test`.
    prepare: turns bytes of the evaluated sets into the network's input.
    clip: called after the backward passes of a step; clips the gradients, if asked to.
    random_inputs: whether the examples were drawn at random.
    batch_size: global. accumulate: equal micro-batches that a batch is computed in.
    evaluation_batch: examples in a batch of an evaluation, global.
    last_step: the optimizer step to stop after.
    patience: epochs without a better score to stop after; None: never.
    log_every: steps between log points.
    checkpoint_every: steps between checkpoints; 0 = each epoch, None = only when stopped.
    save_or_stop: whether a checkpoint that cannot be written ends the run.
    warmup_steps: undone steps before the training. compiles: whether they compile the network.
    layout: the memory format of inputs and weights, by torch's name.
    profile: records some more undone steps. numerics: records what the first steps compute.
    graph: what computes the steps: as they are written, or replayed from a CUDA graph.
    ceiling_steps: undone steps on one batch that is on the device already.
    link_seconds: of timing all-reduces, and steps without communication, before the training.
    counted: what a throughput is shown in.
    loading: how each training process reads its batches.
    config: the frozen job, YAML, stored in checkpoints.
    notes: sentences about where its weights come from and which are trained.
    compile_seconds, ceiling_images_per_second, link, compute_seconds: measured by `warm_up`.
    left_out: checkpoints that were due while the one before was being written.
    result: what loggers get at the end; None until the run has ended well.
    """

    state: State
    forward: nn.Module
    objective: Objective
    batches: Batches
    val: Source | None
    test: Source
    prepare: Preparation
    parallel: Parallel
    place: Place
    stop: Stop
    loggers: list[Logger]
    clock: Clock
    writer: Writer
    batch_size: int
    evaluation_batch: int
    accumulate: int
    last_step: int
    patience: int | None
    log_every: int
    checkpoint_every: int | None
    save_or_stop: bool
    warmup_steps: int
    compiles: bool
    profile: Profile | None
    loading: LoaderPlan
    config: str
    probe: Probe
    memory: PeakMemory
    clip: NoClip = field(default_factory=NoClip)
    graph: NoGraph = field(default_factory=NoGraph)
    notes: Sequence[str] = ()
    numerics: Numerics | None = None
    ceiling_steps: int = 0
    link_seconds: float = 0
    counted: Counted = IMAGES
    layout: str = "contiguous_format"
    random_inputs: bool = False
    compile_seconds: float | None = None
    ceiling_images_per_second: float | None = None
    link: Link | None = None
    compute_seconds: float | None = None
    left_out: int = 0
    result: Result | None = None

    @property
    def score(self) -> Score:
        """What patience and best.pt are selected by."""
        return scoring(self.objective.task)

    def best(self, score: float) -> float:
        """The best score so far, with that of a new evaluation."""
        known = self.state.best_step > 0 and not self.score.beats(score, self.state.best_accuracy)
        return self.state.best_accuracy if known else score

    @property
    def evaluation_due(self) -> bool:
        """Whether an epoch or the run is trained to its end and not evaluated yet."""
        step, per_epoch = self.state.step, self.batches.steps_per_epoch
        return self.state.measured < step and (step % per_epoch == 0 or step >= self.last_step)

    @property
    def finished(self) -> bool:
        """Whether all steps are taken and evaluated, or `patience` has run out."""
        waited = self.state.measured - self.state.best_step
        tired = self.patience is not None and waited >= self.patience * self.batches.steps_per_epoch
        return not self.evaluation_due and (self.state.step >= self.last_step or tired)


def log_step(run: Training) -> bool:
    """Log the loss of the latest step, over the whole global batch.

    Every process must call it. Returns whether one of them has received a signal to stop. Raises
    NumericsError as `mean_loss` does.
    """
    state, rows = run.state, losses(run)
    values = {
        "epoch": state.step / run.batches.steps_per_epoch,
        "loss": rows[:, LAST].mean().item(),
        "lr": state.optimizer.param_groups[0]["lr"],
        "scale": state.scaler.get_scale(),
        "images_per_second": state.step * run.batch_size / run.clock.seconds,
        **run.clip.metrics(),
    }
    for logger in run.loggers:
        logger.log(state.step, values)
    require_finite(run, rows)
    return bool(rows[:, SIGNAL].any())


def mean_loss(run: Training) -> float:
    """The mean training loss of the epoch so far, over its steps and the processes.

    Every process must call it. Raises NumericsError if it is not finite or the scale collapsed.
    """
    rows = losses(run)
    require_finite(run, rows)
    steps = (run.state.step - 1) % run.batches.steps_per_epoch + 1
    return float(rows[:, TOTAL].sum() / (steps * len(rows) - rows[:, BAD].sum()))


TOTAL, BAD, LAST, SIGNAL = range(4)  # columns of `losses`


def losses(run: Training) -> Tensor:
    """The loss tracker and the received signal of each process: float64 [processes, 4].

    Every process must call it. Waits for the device.
    """
    tracker = run.state.losses
    tracker.read()
    row = [tracker.total, tracker.bad, tracker.last, run.stop.signal]
    row_here = torch.tensor(row, dtype=torch.float64, device=run.place.device)
    return gather(row_here, run.parallel, run.place)


def require_finite(run: Training, rows: Tensor) -> None:
    """Raise NumericsError if a loss was not finite or the scale collapsed; rows: see `losses`."""
    scaler = run.state.scaler
    if not run.state.losses.skip and rows[:, BAD].any():
        raise first_bad_loss(run, rows)
    if not scaler.collapsed():
        return
    if run.state.losses.skip:
        raise numerics_error(
            run,
            "gradients",
            "not finite",
            f"too many steps were skipped, {int(scaler.skipped)} by step {run.state.step}",
            "on_nonfinite=skip",
            "lower optimizer.lr, choose a wider amp.dtype or look for bad examples",
        )
    raise numerics_error(
        run,
        "scale",
        scaler.get_scale(),
        f"collapsed by step {run.state.step}",
        "gradients overflow at every scale",
    )


def first_bad_loss(run: Training, rows: Tensor) -> NumericsError:
    """The error for a loss that was not finite; rows: see `losses`.

    Every process must call it: the parameters of those that first saw a bad loss are named.
    """
    bad = rows[:, BAD]
    rank = int(bad.argmax())
    names = [name for name, _ in run.state.model.named_parameters()]
    wrong = [not bool(torch.isfinite(here(p)).all()) for p in run.state.model.parameters()]
    flags = torch.tensor(wrong, dtype=torch.float32, device=run.place.device)
    on_first = gather(flags, run.parallel, run.place)[bad == bad.max()].amax(dim=0).tolist()
    found = [name for name, is_bad in zip(names, on_first, strict=True) if is_bad]
    where = f"first in parameter {found[0]}" if found else "all parameters were finite before it"
    step = run.state.step - int(bad.max()) + 1
    return numerics_error(
        run, "loss", rows[rank, TOTAL].item(), f"not finite at step {step}", where
    )


def numerics_error(
    run: Training,
    name: str,
    value: object,
    wrong: str,
    where: str,
    do: str = "lower optimizer.lr, choose a wider amp.dtype or set on_nonfinite=skip",
) -> NumericsError:
    """The error for a number that is not finite, with the rates in force when it was found."""
    state = run.state
    epoch, lr = state.step / run.batches.steps_per_epoch, state.optimizer.param_groups[0]["lr"]
    scale = state.scaler.get_scale()
    return NumericsError(
        name,
        value,
        f"{wrong}; {where}; epoch {epoch:.4g}, learning rate {lr:g}, loss scale {scale:g}; {do}",
    )


def save_and_stop(run: Training) -> NoReturn:
    """Save a checkpoint and end the run, on all processes together.

    Every process must call it. Raises Interrupted or Preempted.
    """
    signal = torch.tensor(float(run.stop.signal), device=run.place.device)
    number = int(gather(signal, run.parallel, run.place).max())
    mean_loss(run)
    save(run, must=True)
    # No process leaves before it is written: on GPUs `total` returns at once, reading it waits.
    run.parallel.total(torch.zeros((), device=run.place.device)).item()
    folder = run.writer.checkpoints.folder.parent
    raise failure(number)(
        "signal",
        Signals(number).name,
        "the run was stopped",
        f"it is saved at step {run.state.step} in {folder}",
        f"resume with: {typed_as('train')} resume={folder}",
    )


def save(run: Training, best: bool = False, must: bool = False) -> None:
    """Save the state of the run: rank 0 writes a copy while the training continues.

    A sharded checkpoint is written by all processes before this returns.
    Every process must call it. With `must` it is on disk when this returns. One that is due while
    the one before is being written waits for that if it is the `best`, the last one or a `must`,
    and is left out otherwise.
    Raises NumericsError if a parameter is not finite, and ResourceError as `wait_for_writer` does.
    """
    if not (best or must or run.finished) and being_written(run):
        run.left_out += 1
        return
    run.state.train_seconds = run.clock.seconds
    content = run.state.content(run.parallel, run.place, run.writer.spread)
    require_finite_tensors(run, content["model"])
    if run.place.rank != 0 and not run.writer.spread:
        return
    wait_for_writer(run)
    run.writer.save({"format": FORMAT, "config": run.config, **content}, best)
    if must:
        wait_for_writer(run, must)


def require_finite_tensors(run: Training, model: Mapping[str, Tensor]) -> None:
    """Raise NumericsError on every process if a tensor of the model is not finite on one.

    model: as this process would save it; what it has on the meta device is another's.
    """
    bad = [
        value.is_floating_point() and not value.is_meta and not finite(here(value))
        for value in model.values()
    ]
    flags = torch.tensor(bad, dtype=torch.float32, device=run.place.device)
    found = gather(flags, run.parallel, run.place).amax(dim=0).tolist()
    for name, is_bad in zip(model, found, strict=True):
        if is_bad:
            wrong = f"not finite after step {run.state.step}"
            raise numerics_error(run, "parameter", name, wrong, "not saved")


def being_written(run: Training) -> bool:
    """Whether rank 0 is writing a checkpoint at this moment: the same answer on every process.

    Every process must call it. Waits for the device.
    """
    busy = torch.tensor(float(run.writer.busy), device=run.place.device)
    return bool(gather(busy, run.parallel, run.place).any())


def finite(values: Tensor) -> bool:
    """Whether all are finite. They are if their sum is, which is 20 times as fast to see."""
    return bool(values.sum().isfinite()) or bool(values.isfinite().all())


def wait_for_writer(run: Training, must: bool = False) -> None:
    """Wait until the latest checkpoint is on disk.

    Raises ResourceError if it could not be written and `must` be, or checkpoint.on_error=stop;
    otherwise prints a warning.
    """
    try:
        run.writer.wait()
    except ResourceError as error:
        if must or run.save_or_stop:
            raise
        log.warning("%s", error)
        if run.place.rank == 0:
            print(f"{error}".replace("error:", "warning:", 1), file=sys.stderr, flush=True)


@contextmanager
def closing(run: Training) -> Iterator[None]:
    """At the end, also after a failure, finish the latest checkpoint and close the loggers.

    They get `run.result`, or None after a failure. A logger that cannot be closed is a warning:
    the result is written already. Raises ResourceError as `wait_for_writer` does, unless another
    exception ends the run.
    """
    try:
        try:
            yield
            wait_for_writer(run)
        except OSError:  # for example a full disk: the checkpoint's own error says more
            wait_for_writer(run, must=True)
            raise
    except BaseException:
        try:
            run.writer.wait()
        except Exception as error:
            log.warning("%s", error)
        for logger in run.loggers:
            try:
                close(logger, None, run)
            except Exception as error:
                log.warning("%s", error)
        raise
    for logger in run.loggers:
        try:
            close(logger, run.result, run)
        except Exception as error:
            said = redact(one_line(located(error, str(error))))
            line = f"{type(logger).__name__} could not be closed ({said})"
            log.warning(line)
            print(f"warning: {line}", file=sys.stderr, flush=True)


def close(logger: Logger, result: Result | None, run: Training) -> None:
    """Close `logger`, or end this process if that takes longer than peers wait for each other."""

    def late() -> Unended:
        return Unended(
            "rank",
            run.place.rank,
            f"its logger {type(logger).__name__} was not closed in {run.stop.patience:g} s; what "
            "the run wrote before is kept; see what it waits for; launch.timeout is the limit",
        )

    timer = run.stop.end_after(run.stop.patience, late)
    try:
        logger.close(result)
    finally:
        timer.cancel()
