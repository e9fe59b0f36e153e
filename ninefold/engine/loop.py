"""The training loop."""

from __future__ import annotations

import math
import time
from collections.abc import Callable

import torch
from torch import Tensor

from ninefold.engine.batches import Source
from ninefold.engine.divergence import LOOK, mean_loss, numerics_error
from ninefold.engine.evaluation import Evaluation, Evaluations, Unfinished, evaluate
from ninefold.engine.training import Step, Training, Update
from ninefold.tree import Tree, chunks, rows


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
        if not run.evaluation_due:  # else a resumed run begins with its evaluation
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
        loss = mean_loss(run)  # raises if the run has diverged: it is not worth evaluating
        evaluations = evaluate_splits(run)
        record(run, loss, evaluations.selecting.score)
    return evaluations or evaluate_splits(run)


def stepper(run: Training) -> Step:
    """Return the training step of `run`: a function of (inputs, targets) on the device.

    From the inside out: forward and backward of a micro-batch; the gradients of a batch; with the
    optimizer's step and the host's part a `step`.
    """
    state, clock = run.state, run.clock
    scaler, optimizer = state.scaler, state.optimizer

    def forward_backward(inputs: Tree, targets: Tree, share: float | None = None) -> Tensor:
        loss: Tensor = run.forward(inputs, targets)
        clock.mark("forward")
        scaler.scale(loss if share is None else loss * share).backward()
        clock.mark("backward")
        return loss.detach()

    add_gradients: Update = forward_backward
    if run.accumulate > 1:
        add_gradients = in_micro_batches(run, forward_backward)

    def step(inputs: Tree, targets: Tree) -> None:
        state.schedule.begin_step()
        loss = add_gradients(inputs, targets)
        state.losses.watch(loss)
        run.clip()
        # A step that one process skips is skipped by all: they have averaged their gradients.
        scaler.step(optimizer)
        scaler.update()
        state.drop_gradients()
        state.losses.add(loss)
        state.average.update(state.step)
        clock.mark("optimizer")

    return step


def in_micro_batches(run: Training, of_one: Callable[[Tree, Tree, float], Tensor]) -> Update:
    """Accumulate the gradients of a batch over micro-batches, which takes less memory.

    They are those of the same mean loss, but batch norm takes its statistics of micro-batches.
    """
    count = run.accumulate

    def add_gradients(inputs: Tree, targets: Tree) -> Tensor:
        # Else they were unequal, or fewer: then none is the last one, in which processes average.
        assert rows(inputs) % count == 0, f"{rows(inputs)} examples in {count} micro-batches"
        losses = []
        micro_batches = zip(chunks(inputs, count), chunks(targets, count), strict=True)
        for number, (some, their) in enumerate(micro_batches, 1):
            with run.parallel.accumulating(run.forward, last=number == count):
                losses.append(of_one(some, their, 1 / count))
        return torch.stack(losses).mean()

    return add_gradients


def record(run: Training, loss: float, score: float) -> None:
    """Record an evaluation; after a whole epoch, step the scheduler as well.

    loss: mean of the epoch's training losses. score: of the set that selects.
    """
    state = run.state
    if state.step % run.batches.steps_per_epoch == 0:
        state.epoch_seconds.append(run.clock.seconds - sum(state.epoch_seconds))
        state.schedule.end_epoch(loss)
        state.losses.start_epoch()
    state.measured = state.step
    best = not state.best_step or run.score.beats(score, state.best_score)
    if best:
        state.best_score, state.best_step = float(score), state.step
    run.after_recording(best)


def evaluate_splits(run: Training) -> Evaluations:
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
            raise numerics_error(run, f"{split}_loss", loss, wrong, "the training loss was", LOOK)
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
        gradients=run.objective.differentiates,
    )
