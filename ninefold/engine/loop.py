"""The training loop."""

from __future__ import annotations

import math
import time
from collections.abc import Callable

import torch
from torch import Tensor

from ninefold.engine.batches import Source
from ninefold.engine.divergence import mean_loss, numerics_error
from ninefold.engine.evaluation import Evaluation, Evaluations, Unfinished, evaluate
from ninefold.engine.training import Step, Training
from ninefold.tree import Tree, chunks


def train(run: Training) -> Evaluations:
    """Train from the step of `run.state` to the end; return the last evaluations.

    Raises NumericsError if a loss, a parameter or the loss scale is no longer usable, and what
    the methods of `run` raise between steps: Preempted or Interrupted after a signal.
    """
    state, clock, batches = run.state, run.clock, run.batches
    step = stepper(run)
    run.forward.train()
    run.before_training(step)
    evaluations = None
    while not run.finished:
        if not run.evaluation_due:
            epoch, position = divmod(state.step, batches.steps_per_epoch)
            clock.start()
            for inputs, targets in batches.epoch(epoch, position, clock.begin_step, clock.mark):
                step(inputs, targets)
                clock.end_step()
                state.step += 1
                run.after_step()
                if state.step == run.last_step:
                    break
            clock.stop()
        loss_of_epoch = mean_loss(run)  # a run that has diverged is not worth evaluating
        evaluations = measure(run)
        end_epoch(run, loss_of_epoch, evaluations.selecting.accuracy)
    return evaluations or measure(run)


def stepper(run: Training) -> Step:
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


def end_epoch(run: Training, loss: float, score: float) -> None:
    """Record an evaluation and step the scheduler.

    loss: mean of the epoch's training losses. score: of the set that selects.
    """
    state = run.state
    if state.step % run.batches.steps_per_epoch == 0:
        state.epoch_seconds.append(run.clock.seconds - sum(state.epoch_seconds))
        state.schedule.end_epoch(loss)
        state.losses.start_epoch()
    state.measured = state.step
    best = not state.best_step or run.score.beats(score, state.best_accuracy)
    if best:
        state.best_accuracy, state.best_step = score, state.step
    run.after_epoch(best)


def measure(run: Training) -> Evaluations:
    """Evaluate on the test set, and on the validation split, outside the inner clock.

    Raises NumericsError if a loss is not finite; where a process has interrupted an evaluation,
    what `run.after_interruption` raises, or Unfinished.
    """
    began = time.perf_counter()
    try:
        with run.memory.paused(), run.state.average.in_place():
            test = evaluate_on(run, run.test)
            found = Evaluations(test, None if run.val is None else evaluate_on(run, run.val))
    except Unfinished:
        run.after_interruption()
        raise
    run.state.evaluate_seconds += time.perf_counter() - began
    for split, evaluation in found.by_split().items():
        if not math.isfinite(loss := evaluation.loss):
            wrong = f"not finite after step {run.state.step}"
            raise numerics_error(run, f"{split}_loss", loss, wrong, "the training loss was")
    run.after_evaluation(found)
    return found


def evaluate_on(run: Training, source: Source) -> Evaluation:
    return evaluate(
        run.forward,
        source,
        task=run.objective.task,
        batch_size=run.evaluation_batch,
        prepare=run.prepare,
        parallel=run.parallel,
        context=run.context,
        interrupted=run.interrupted,
    )
