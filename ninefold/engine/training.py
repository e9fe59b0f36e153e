"""The parts of a training: what the loop works with, and what a subclass may do between steps."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn

from ninefold.engine.batches import Batches, Preparation, Source
from ninefold.engine.clip import NoClip
from ninefold.engine.clock import Clock
from ninefold.engine.evaluation import Evaluations
from ninefold.engine.parallel import Parallel, RankContext
from ninefold.engine.state import State
from ninefold.engine.task import Objective, scoring
from ninefold.score import Score
from ninefold.tree import Tree

Step = Callable[[Tree, Tree], None]  # trains on a batch: inputs and targets, on the device
Update = Callable[[Tree, Tree], Tensor]  # (inputs, targets) -> the loss of a step, detached


class PeakMemory:
    """The most bytes that training has allocated on each of `gpus`; evaluations are left out.

    Their batches may be larger than those of training, see `engine.batches.evaluation_batch`.
    """

    def __init__(self, gpus: Sequence[int]) -> None:
        self._most = dict.fromkeys(gpus, 0)

    def start(self) -> None:
        """Forget what was measured before."""
        for index in self._most:
            self._most[index] = 0
            torch.cuda.reset_peak_memory_stats(index)

    def bytes(self) -> list[int]:
        """The peaks so far."""
        return [max(most, torch.cuda.max_memory_allocated(i)) for i, most in self._most.items()]

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Measure nothing inside the block."""
        self._most = dict(zip(self._most, self.bytes(), strict=True))
        try:
            yield
        finally:
            for index in self._most:
                torch.cuda.reset_peak_memory_stats(index)


@dataclass(kw_only=True)
class Training:
    """The parts of a training: plain objects, no configuration.

    forward: the wrapped objective, as DDP(Objective(Autocast(network), task)); from (inputs,
        targets) to the mean loss.
    objective: the network and its task, not wrapped; state.model is the plain network to save.
    val: the examples that patience and best.pt are selected on; None: those of `test`.
    prepare: turns bytes of the evaluated sets into the network's input.
    memory: the peak memory of training, evaluations left out.
    batch_size: global. accumulate: equal micro-batches that a batch is computed in.
    evaluation_batch: examples in a batch of an evaluation, global.
    last_step: the optimizer step to stop after.
    patience: epochs without a better score to stop after; None: never.
    clip: called after the backward passes of a step; clips the gradients, if asked to.

    The methods named `before_...`, `after_...` and `interrupted` do nothing here. A
    subclass logs, saves and looks for signals in them. Every process calls them together, and
    what they raise ends the training.
    """

    state: State
    forward: nn.Module
    objective: Objective
    batches: Batches
    test: Source
    val: Source | None
    prepare: Preparation
    parallel: Parallel
    context: RankContext
    clock: Clock
    memory: PeakMemory
    batch_size: int
    evaluation_batch: int
    accumulate: int
    last_step: int
    patience: int | None
    clip: NoClip = field(default_factory=NoClip)

    @property
    def score(self) -> Score:
        """Score that patience and best.pt are selected by."""
        return scoring(self.objective.task)

    @property
    def evaluation_due(self) -> bool:
        """Return whether an epoch or the run is trained to its end and not evaluated yet."""
        step, per_epoch = self.state.step, self.batches.steps_per_epoch
        return self.state.measured < step and (step % per_epoch == 0 or step >= self.last_step)

    @property
    def finished(self) -> bool:
        """Return whether all steps are taken and evaluated, or `patience` has run out."""
        waited = self.state.measured - self.state.best_step
        tired = self.patience is not None and waited >= self.patience * self.batches.steps_per_epoch
        return not self.evaluation_due and (self.state.step >= self.last_step or tired)

    def before_training(self, step: Step) -> None:
        """Called once before the first step, with the network in training mode."""

    def after_step(self) -> None:
        """Called after each step, with the clock running."""

    def interrupted(self) -> bool:
        """Return whether an evaluation is to end: asked before each of its batches."""
        return False

    def after_interruption(self) -> None:
        """Called after an evaluation that a process has interrupted."""

    def after_evaluation(self, found: Evaluations) -> None:
        """Called with the evaluations of the present step, before the state records them."""

    def after_recording(self, best: bool) -> None:
        """Called when the state has recorded an evaluation. best: whether it is the best so far."""
