"""The state of a training run: what a checkpoint holds, and how a run resumes from it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from ninefold.engine import generators
from ninefold.engine.amp import CountingScaler
from ninefold.engine.average import Average
from ninefold.engine.loss_tracker import LossTracker
from ninefold.engine.parallel import Parallel, RankContext, gather
from ninefold.engine.schedule import Schedule, require_counts
from ninefold.engine.task import buffers
from ninefold.errors import error_text, one_line

COUNTERS = ("step", "measured", "best_step", "skipped")  # in a checkpoint
# Fields of a State that a checkpoint holds as they are.
PLAIN = (
    *("step", "measured", "best_step", "best_score", "train_seconds", "evaluate_seconds"),
    *("epoch_seconds", "origin", "examples", "names", "where"),
)


@dataclass
class State:
    """Progress of a training run: everything that an exact resume needs.

    model: the plain network; after `Parallel.wrap`, which may have replaced its parameters.
    losses: the loss tracker of this process, for the current epoch.
    task: the task, whose loss may change buffers of its own.
    step: optimizer steps so far, which is also the position in the data.
    measured: the step of the latest evaluation. best_step: of the best one.
    best_score: the score of the best evaluation; -1 before the first.
    train_seconds, evaluate_seconds, epoch_seconds: of the inner clock, of all evaluations, and of
    the inner clock in each epoch.
    origin: sentences about the weights that the run began with, on rank 0.
    examples: numbers of them, for training, validation and test.
    names: of the classes, where the dataset or its keys say them.
    where: what it is computed by: strategy, processes, device, dtype and torch.
    """

    model: nn.Module
    optimizer: torch.optim.Optimizer
    schedule: Schedule
    scaler: CountingScaler
    average: Average
    losses: LossTracker
    task: object = None
    step: int = 0
    measured: int = 0
    best_step: int = 0
    best_score: float = -1.0
    train_seconds: float = 0.0
    evaluate_seconds: float = 0.0
    epoch_seconds: list[float] = field(default_factory=list)
    origin: list[str] = field(default_factory=list)
    examples: list[int] = field(default_factory=list)
    names: list[str] = field(default_factory=list)
    where: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._parameters = list(self.model.parameters())

    def capture(self, parallel: Parallel, context: RankContext) -> dict[str, Any]:
        """A copy of `content`, of this process's parts, on the CPU, as `restore` takes it.

        Every process must call it.
        """

        def copy(tensor: Tensor) -> Tensor:
            return tensor if tensor.is_meta else tensor.to("cpu", copy=True)

        captured: dict[str, Any] = copied(self.content(parallel, context, True), copy)
        return captured

    def content(
        self, parallel: Parallel, context: RankContext, parts: bool = False
    ) -> dict[str, Any]:
        """Content of a checkpoint: tensors, mostly the live ones, and plain containers.

        parts: each process has its parts of sharded tensors, to be saved by all; else rank 0 has
        them whole, and its content is the one to save. Every process must call it.
        """
        tensors = parallel.parts if parts else parallel.state
        found = tensors(self.model, self.optimizer, self.average.named())
        return {
            **found,
            "optimizer": copied(found["optimizer"], lambda tensor: tensor),
            "scheduler": copied(self.schedule.state_dict(), lambda tensor: tensor),
            "scaler": self.scaler.state_dict(),
            "skipped": int(self.scaler.skipped),
            "rng": [gather(rng, parallel, context) for rng in generators.states(context)],
            "losses": gather(self._losses(context), parallel, context),
            "task": buffers(self.task),
            **{name: getattr(self, name) for name in PLAIN},
        }

    def _losses(self, context: RankContext) -> Tensor:
        self.losses.read()
        values = [self.losses.total, self.losses.bad]
        return torch.tensor(values, dtype=torch.float64, device=context.device)

    def drop_gradients(self) -> None:
        """Set gradients to None; `optimizer.zero_grad()` has profiler hooks that are slow."""
        for parameter in self._parameters:
            parameter.grad = None

    def restore(self, saved: Mapping[str, Any], parallel: Parallel, context: RankContext) -> None:
        """Continue from what `capture` returned or a checkpoint holds. Every process must call it.

        On another number of processes the random generators keep their initial state, and each
        begins with the mean of the sums of losses: only their mean is used in the end.
        Raises KeyError, RuntimeError, TypeError or ValueError if it is of another model or
        optimizer, or damaged.
        """
        require_counts([(key, saved[key]) for key in COUNTERS])
        parallel.load(saved, self.model, self.optimizer, self.average.named())
        with _restoring("task"):
            for name, value in buffers(self.task).items():
                value.copy_(saved["task"][name])
        with _restoring("scheduler"):
            self.schedule.load_state_dict(saved["scheduler"])
        with _restoring("scaler"):
            if saved["scaler"]:
                self.scaler.load_state_dict(saved["scaler"])
        self.scaler.skipped.fill_(saved["skipped"])
        with _restoring("losses"):
            losses = saved["losses"]
            same = len(losses) == context.world_size
            total, bad = (losses[context.rank] if same else losses.mean(dim=0)).tolist()
            self.losses.start_epoch(total, bad)
        with _restoring("rng"):
            if same:
                generators.set_states([rows[context.rank] for rows in saved["rng"]], context)
        self.step, self.measured = saved["step"], saved["measured"]
        self.best_step = saved["best_step"]
        with _restoring("figures"):
            self.best_score = float(saved["best_score"])
            self.train_seconds = float(saved["train_seconds"])
            self.evaluate_seconds = float(saved["evaluate_seconds"])
            self.epoch_seconds = list(map(float, saved["epoch_seconds"]))
        self.origin = [one_line(str(note)) for note in saved["origin"]]


@contextmanager
def _restoring(key: str) -> Iterator[None]:
    """Name the key of a checkpoint in the error of a value that cannot be used. ValueError."""
    try:
        yield
    except Exception as error:
        raise ValueError(f"{key}: {error_text(error)}") from error


def copied(tree: Any, copy: Callable[[Tensor], Tensor]) -> Any:
    """`tree` in new containers, with `copy(tensor)` for each tensor, in a fixed order."""
    return mapped(tree, lambda name, tensor: copy(tensor))


def mapped(tree: Any, change: Callable[[str, Tensor], Tensor], name: str = "") -> Any:
    """`tree` in new containers, with `change(name, tensor)` for each tensor; names are dotted.

    A number of NumPy's, as a schedule by np.cos computes one, becomes Python's: torch.load reads
    no other.
    """
    if isinstance(tree, Tensor):
        return change(name, tree.detach())
    if isinstance(tree, Mapping):
        items = tree.items()
        made = {key: mapped(v, change, f"{name}.{key}" if name else str(key)) for key, v in items}
        return Counter(made) if isinstance(tree, Counter) else made  # MultiStepLR asks it for more
    if isinstance(tree, list | tuple):
        return [mapped(value, change, f"{name}.{index}") for index, value in enumerate(tree)]
    return tree.item() if isinstance(tree, np.generic) else tree
