"""The training loop."""

from __future__ import annotations

import math
import time
from collections.abc import Callable

import torch
from torch import Tensor

from ninefold.dataset.loader import Source
from ninefold.train.evaluation import Evaluation, Evaluations, Unfinished, evaluate
from ninefold.train.training import (
    Training,
    log_step,
    mean_loss,
    numerics_error,
    save,
    save_and_stop,
    wait_for_writer,
)
from ninefold.train.warmup import start_measuring, warm_up
from ninefold.tree import Tree, chunks


def train(run: Training) -> Evaluations:
    """Train from the step of `run.state` to the end; return the last evaluations.

    Raises NumericsError if a loss, a parameter or the loss scale is no longer usable, and
    Preempted or Interrupted, with a checkpoint written, if a process received a signal.
    """
    state, clock, batches = run.state, run.clock, run.batches
    step = stepper(run)
    run.forward.train()
    warm_up(run, step)
    start_measuring(run)
    evaluations = None
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
        loss_of_epoch = mean_loss(run)  # a run that has diverged is not worth evaluating
        evaluations = measure(run)
        end_epoch(run, loss_of_epoch, evaluations.selecting.accuracy)
    return evaluations or measure(run)


def stepper(run: Training) -> Callable[[Tree, Tree], None]:
    """Return the training step of `run`: a function of (inputs, targets) on the device."""
    state, clock = run.state, run.clock
    scaler, optimizer = state.scaler, state.optimizer

    def gradients(inputs: Tree, targets: Tree, share: float | None = None) -> Tensor:
        loss: Tensor = run.forward(inputs, targets)
        clock.mark("forward")
        scaler.scale(loss if share is None else loss * share).backward()
        clock.mark("backward")
        return loss.detach()

    compute = in_micro_batches(run, gradients) if run.accumulate > 1 else gradients

    def update(inputs: Tree, targets: Tree) -> Tensor:
        loss = compute(inputs, targets)
        state.losses.watch(loss)
        run.clip()
        scaler.step(optimizer)
        scaler.update()
        state.drop_gradients()
        return loss

    updated = run.graph.computing(update)

    def step(inputs: Tree, targets: Tree) -> None:
        state.schedule.begin_step()
        state.losses.add(updated(inputs, targets))
        state.average.update()
        clock.mark("optimizer")

    return step


def in_micro_batches(run: Training, gradients: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """Accumulate gradients over micro-batches: the same gradients, in less memory."""
    count = run.accumulate

    def compute(inputs: Tree, targets: Tree) -> Tensor:
        losses = []
        micro_batches = zip(chunks(inputs, count), chunks(targets, count), strict=True)
        for number, (some, their) in enumerate(micro_batches, 1):
            with run.parallel.accumulating(run.forward, last=number == count):
                losses.append(gradients(some, their, 1 / count))
        return torch.stack(losses).mean()

    return compute


def between_steps(run: Training) -> None:
    """Do what is due after a step: log, save a checkpoint, or stop after a signal.

    The inner clock is paused meanwhile. It does count what a write in the background costs steps.
    """
    step, every = run.state.step, run.checkpoint_every
    logs, stops = step % run.log_every == 0, run.stop.due(step)
    saves = every is not None and every > 0 and step % every == 0
    failed = run.writer.failed
    if not (logs or stops or saves or failed):
        return
    with run.clock.paused():
        if failed:
            wait_for_writer(run)
        if logs:
            stops = log_step(run) or stops
        if stops:
            save_and_stop(run)
        if saves and not run.evaluation_due:  # it will be saved after that
            mean_loss(run)  # a run that has diverged is not worth keeping
            save(run)


def end_epoch(run: Training, loss: float, score: float) -> None:
    """Record an evaluation, step the scheduler and save.

    loss: mean of the epoch's training losses. score: of the set that selects.
    """
    state = run.state
    if state.step % run.batches.steps_per_epoch == 0:
        state.epoch_seconds.append(run.clock.seconds - sum(state.epoch_seconds))
        state.schedule.end_epoch(loss, score)
        state.losses.start_epoch()
    state.measured = state.step
    best = not state.best_step or run.score.beats(score, state.best_accuracy)
    if best:
        state.best_accuracy, state.best_step = score, state.step
    if run.checkpoint_every is not None:
        save(run, best)


def measure(run: Training) -> Evaluations:
    """Evaluate on the test set, and on the validation split, outside the inner clock.

    The losses and scores are logged unless that was done before.

    Raises NumericsError if a loss is not finite; after a signal see `save_and_stop`.
    """
    began = time.perf_counter()
    try:
        with run.memory.paused(), run.state.average.in_place():
            found = Evaluations(
                evaluate_on(run, run.test), None if run.val is None else evaluate_on(run, run.val)
            )
    except Unfinished:
        save_and_stop(run)
    run.state.evaluate_seconds += time.perf_counter() - began
    values = {"epoch": run.state.step / run.batches.steps_per_epoch}
    for split, evaluation in (("test", found.test), ("val", found.val)):
        if evaluation is None:
            continue
        field, loss = f"{split}_loss", evaluation.loss
        if not math.isfinite(loss):
            wrong = f"not finite after step {run.state.step}"
            raise numerics_error(run, field, loss, wrong, "the training loss was")
        values |= {field: loss, f"{split}_accuracy": evaluation.accuracy}
    values["seconds"] = run.clock.seconds
    if run.state.measured < run.state.step or run.state.step == 0:  # 0: of a run of no step
        for logger in run.loggers:
            logger.log(run.state.step, values)
    return found


def evaluate_on(run: Training, source: Source) -> Evaluation:
    return evaluate(
        run.forward,
        source,
        task=run.objective.task,
        batch_size=run.evaluation_batch,
        prepare=run.prepare,
        parallel=run.parallel,
        place=run.place,
        interrupted=lambda: run.stop.wanted,
    )
