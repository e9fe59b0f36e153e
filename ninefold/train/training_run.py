"""A training as a run: what is logged, saved and looked at between its steps."""

from __future__ import annotations

import logging
import math
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from signal import Signals
from typing import Any, NoReturn

import torch
from torch import Tensor

from ninefold.checkpoint.manifest import FORMAT
from ninefold.checkpoint.writer import Writer
from ninefold.dataset.plan import LoaderPlan
from ninefold.engine.amp import Amp
from ninefold.engine.divergence import losses, numerics_error, require_finite
from ninefold.engine.evaluation import Evaluations
from ninefold.engine.parallel import gather, local_part
from ninefold.engine.training import Step, Training
from ninefold.errors import ProcessNotEnded, by_signal, located, one_line
from ninefold.logger import Logger
from ninefold.measure.devices import Load
from ninefold.places import typed_as
from ninefold.result import FILE, Result
from ninefold.score import IMAGES, Counted
from ninefold.secrets import redact
from ninefold.signals import Stop, failure
from ninefold.train.warmup import WarmUp, warm_up
from ninefold.words import for_shell

log = logging.getLogger(__name__)


@dataclass(kw_only=True)
class TrainingRun(Training):
    """A training that logs, saves checkpoints, and ends with one after a signal.

    job: the frozen job, an OmegaConf. amp: the precision, settled.
    log_every: steps between log points.
    checkpoint_every: steps between checkpoints; 0 = each epoch, None = only when stopped.
    job_yaml: the frozen job, stored in checkpoints.
    warmup: the undone steps before the training.
    load: how busy the devices are while the clock runs.
    layout: the memory format of inputs and weights, by torch's name.
    loading: how each training process reads its batches.
    random_inputs: whether the examples were drawn at random.
    mean_loss: whether the loss of a batch is the mean of its halves'; None: it was not tried.
    counted: what a throughput is shown in.
    notes: sentences about where its weights come from and which are trained.
    left_out: checkpoints that were due while the one before was being written.
    result: what loggers get at the end; None until the run has ended well.
    write_job: of a run that is resumed, writes its job with what this command changes.
    """

    job: Any
    amp: Amp
    stop: Stop
    loggers: list[Logger]
    log_every: int
    writer: Writer
    checkpoint_every: int | None
    job_yaml: str
    warmup: WarmUp
    load: Load
    layout: str
    loading: LoaderPlan
    random_inputs: bool = False
    mean_loss: bool | None = None
    counted: Counted = IMAGES
    notes: Sequence[str] = ()
    left_out: int = 0
    result: Result | None = None
    write_job: Callable[[], None] = lambda: None

    def before_training(self, step: Step) -> None:
        warm_up(self, self.warmup, step, self._reserve)
        self.memory.start()
        if self.context.rank != 0:
            return
        # Only now: a resume that cannot train so far changes nothing in the run.
        self.write_job()
        if not self.finished:  # the result of an earlier segment no longer holds
            (self.writer.checkpoints.folder.parent / FILE).unlink(missing_ok=True)

    def _reserve(self) -> None:
        """Take the memory for copies of the state that is saved, all of which there is by now."""
        content = self.state.content(self.parallel, self.context, self.writer.spread)
        if self.context.rank == 0 and self.checkpoint_every is not None:
            self.writer.reserve(content)

    def after_step(self) -> None:
        """Log, save a checkpoint, or stop after a signal, where one of them is due.

        The inner clock is paused meanwhile. It counts what a write in the background costs steps.
        """
        step, every = self.state.step, self.checkpoint_every
        logs, stops = step % self.log_every == 0, self.stop.due(step)
        saves = every is not None and every > 0 and step % every == 0
        failed = self.writer.failed
        if not (logs or stops or saves or failed):
            return
        with self.clock.paused():
            if failed:
                self.writer.wait()
            if logs:
                stops = log_step(self) or stops
            if stops:
                save_and_stop(self)
            if saves and not self.evaluation_due:  # it will be saved after that
                require_finite(self, losses(self))  # else it is not worth keeping
                save(self)

    def interrupted(self) -> bool:
        return self.stop.wanted

    def after_interruption(self) -> None:
        save_and_stop(self)

    def after_evaluation(self, found: Evaluations) -> None:
        """Log the losses and scores, unless that was done before this run was resumed."""
        state = self.state
        if state.measured == state.step > 0:  # 0: of a run of no step
            return
        values = {"epoch": state.step / self.batches.steps_per_epoch}
        for split, evaluation in found.by_split().items():
            values |= {f"{split}_loss": evaluation.loss, f"{split}_score": evaluation.score}
        values["seconds"] = self.clock.seconds
        for logger in self.loggers:
            logger.log(state.step, values)

    def after_recording(self, best: bool) -> None:
        if self.checkpoint_every is not None:
            save(self, best)


def log_step(run: TrainingRun) -> bool:
    """Log the loss of the latest step, over the whole global batch.

    Every process must call it. Returns whether one of them has received a signal to stop. Raises
    NumericsError as `require_finite` does.
    """
    state, found = run.state, losses(run, run.stop.signal)
    values = {
        "epoch": state.step / run.batches.steps_per_epoch,
        "loss": found.last.mean().item(),
        "lr": float(state.optimizer.param_groups[0]["lr"]),
        "scale": state.scaler.get_scale(),
        # The steps before those of a turn are not on the clock: there may be none so far.
        "examples_per_second": state.step * run.batch_size / (run.clock.seconds or math.inf),
        **run.clip.metrics(),
    }
    for logger in run.loggers:
        logger.log(state.step, values)
    require_finite(run, found)
    return bool(found.extra.any())


def save_and_stop(run: TrainingRun) -> NoReturn:
    """Save a checkpoint and end the run, on all processes together.

    Every process must call it. Raises Interrupted or Preempted.
    """
    signal = torch.tensor(float(run.stop.signal), device=run.context.device)
    number = int(gather(signal, run.parallel, run.context).max())
    require_finite(run, losses(run))
    save(run, must=True)
    # No process leaves before it is written: on GPUs the sum returns at once, reading it waits.
    run.parallel.all_reduce_sum(torch.zeros((), device=run.context.device)).item()
    folder = run.writer.checkpoints.folder.parent
    raise failure(number)(
        "signal",
        Signals(number).name,
        "the run was stopped",
        f"it is saved at step {run.state.step} in {folder}",
        f"resume with: {typed_as('train')} {for_shell('resume', folder)}",
    )


def save(run: TrainingRun, best: bool = False, must: bool = False) -> None:
    """Save the state of the run: rank 0 writes a copy while the training continues.

    A sharded checkpoint is written by all processes before this returns.
    Every process must call it. With `must` it is on disk when this returns. One that is due while
    the one before is being written waits for that if it is the `best`, the last one or a `must`,
    and is left out otherwise.
    Raises NumericsError if a parameter is not finite, and ResourceError if a checkpoint could not
    be written.
    """
    if not (best or must or run.finished) and being_written(run):
        run.left_out += 1
        return
    run.state.train_seconds = run.clock.seconds
    content = run.state.content(run.parallel, run.context, run.writer.spread)
    require_finite_tensors(run, content["model"])
    if run.context.rank != 0 and not run.writer.spread:
        return
    run.writer.wait()
    run.writer.save({"format": FORMAT, "config": run.job_yaml, **content}, best)
    if must:
        run.writer.wait()


def require_finite_tensors(run: TrainingRun, model: Mapping[str, Tensor]) -> None:
    """Raise NumericsError on every process if a tensor of the model is not finite on one.

    model: as this process would save it; what it has on the meta device is another's. -inf in a
    buffer is a mask's.
    """
    parameters = dict(run.state.model.named_parameters(remove_duplicate=False))

    def is_bad_here(name: str, value: Tensor) -> bool:
        if value.is_meta or not value.is_floating_point():
            return False
        own = local_part(value)
        return not finite(own if name in parameters else own.clamp(torch.finfo(own.dtype).min))

    bad = [is_bad_here(name, value) for name, value in model.items()]
    flags = torch.tensor(bad, dtype=torch.float32, device=run.context.device)
    found = gather(flags, run.parallel, run.context).amax(dim=0).tolist()
    for name, is_bad in zip(model, found, strict=True):
        if is_bad:
            wrong = f"not finite after step {run.state.step}"
            raise numerics_error(run, "parameter", name, wrong, "not saved")


def being_written(run: TrainingRun) -> bool:
    """Return whether rank 0 is writing a checkpoint now: the same answer on every process.

    Every process must call it. Waits for the device.
    """
    busy = torch.tensor(float(run.writer.busy), device=run.context.device)
    return bool(gather(busy, run.parallel, run.context).any())


def finite(values: Tensor) -> bool:
    """Return whether all are finite. They are if their sum is, which is 20 times as fast to see."""
    return bool(values.sum().isfinite()) or bool(values.isfinite().all())


@contextmanager
def closing(run: TrainingRun) -> Iterator[None]:
    """At the end, also after a failure, finish the latest checkpoint and close the loggers.

    They get `run.result`, or None after a failure. A logger that cannot be closed is a warning:
    the result is written already. Raises ResourceError if a checkpoint could not be
    written, unless another exception ends the run.
    """
    try:
        try:
            yield
            run.writer.wait()
        except OSError:  # for example a full disk: the checkpoint's own error says more
            run.writer.wait()
            raise
    except BaseException:
        try:
            run.writer.wait()
        except Exception as error:
            log.warning("%s", error)
        for logger in run.loggers:
            close(logger, None, run)
        raise
    for logger in run.loggers:
        if why := close(logger, run.result, run):
            print(f"warning: {why}", file=sys.stderr, flush=True)


def close(logger: Logger, result: Result | None, run: TrainingRun) -> str | None:
    """Close `logger`, or end this process if that takes longer than peers wait for each other.

    Returns, and logs, why it cannot be closed: whatever it raises, the run ends as it would.
    """

    def late() -> ProcessNotEnded:
        wrong = (
            f"its logger {type(logger).__name__} was not closed in {run.stop.patience:g} s; what "
            "the run wrote before is kept"
        )
        do = "launch.timeout is the limit"
        return ProcessNotEnded("rank", run.context.rank, wrong, "see what it waits for", do)

    timer = run.stop.end_after(run.stop.patience, late)
    try:
        logger.close(result)
        return None
    except BaseException as error:
        if by_signal(error):
            raise
        said = redact(one_line(located(error)))
        line = f"{type(logger).__name__} could not be closed ({said})"
        log.warning(line)
        return line
    finally:
        timer.cancel()
