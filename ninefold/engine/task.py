"""Tasks: a loss to minimize and scores to report."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from ninefold.errors import ConfigError, Failure, NumericsError, located, memory_failure, one_line
from ninefold.score import SHARE, Figure, Score
from ninefold.tree import Tree, call, rows

__all__ = ["Figure", "Objective", "Score", "Scores", "Task"]


@dataclass(frozen=True)
class Scores:
    """Scores of a model in an evaluation.

    score: the task's score, a finite number; in 0..1 if it is a share.
    others: further figures. Or a mapping from names to values, None: undefined: plain numbers,
        without a unit or a direction.
    each: the score of each class, landmark, ... by name; None: it has no examples.
    table: the confusion matrix, int64 [true, predicted], of a task that has one.
    each_name: what `each` is, such as IoU.
    counted: what the table counts.
    """

    score: float
    others: Sequence[Figure] | Mapping[str, float | None] = ()
    each: Mapping[str, float | None] = field(default_factory=dict)
    table: npt.NDArray[np.int64] | None = None
    each_name: str = "accuracy"
    counted: str = "examples"

    @property
    def figures(self) -> dict[str, float | None]:
        """The values of the further figures, by their names in files."""
        if isinstance(self.others, Mapping):
            return dict(self.others)
        return {figure.key: figure.value for figure in self.others}

    @property
    def kinds(self) -> dict[str, dict[str, str]]:
        """Name, unit and better of the further figures, by the same names."""
        if isinstance(self.others, Mapping):
            return {}
        return {
            each.key: {"name": each.name, "unit": each.unit, "better": each.better}
            for each in self.others
        }


class Task(Protocol):
    """A loss and what to measure, of a network's output and an example's target.

    output: what the network returns for a batch, float32, examples along dimension 0; a tuple or a
        dict where it returns one and model.output is null.
    target: the targets of the same examples, dtype and shape as the dataset has them; a tuple or a
        dict where its items have one.

    A task that holds tensors, such as weights of classes, is an nn.Module: they are then moved and
    replicated with the network, and its buffers are saved with a run's state. Of its modules those
    that are built in evaluation mode stay in it, as the network of a perceptual loss; the others
    are switched with the network.

    It may also have `require_targets(targets)`, which is called before a run with the array of all
    training targets, where that is in memory, and raises DataError for what they cannot be.
    """

    @property
    def score(self) -> str | Score:
        """Score that networks are told apart by, with name, unit and direction.

        Or its name alone, as `accuracy` or `mean IoU`: a share from 0 to 1, more is better.
        """

    def loss(self, output: Any, target: Any) -> Tensor:
        """A float32 scalar: the mean over the examples of a number that each gives alone.

        A mean over all valid pixels or points of a batch would not do: the mean over the
        processes would then depend on how the examples are spread over them.
        """

    def measure(self, output: Any, target: Any) -> Tensor:
        """Sums that add up over batches and processes: a tensor of fixed shape and dtype."""

    def scores(self, sums: Tensor, names: Sequence[str]) -> Scores:
        """Compute scores from the sums over a whole set. names: of the classes; empty: unknown."""


class Objective(nn.Module):
    """A network and its task in one module: what a parallel strategy wraps and calls.

    The loss is computed where the network runs, so that a strategy that uses several devices
    needs to move numbers only.

    differentiates: whether it takes gradients itself, as a gradient penalty does, so that they are
        enabled in evaluations too.
    """

    def __init__(self, network: nn.Module, task: Task, differentiates: bool = False) -> None:
        super().__init__()
        self.network = network
        self.task = task
        self.differentiates = differentiates
        # By name, as a strategy may replace modules.
        self._stay_in_eval = [
            name
            for name, module in self.named_modules()
            if name.startswith("task") and not module.training
        ]

    def train(self, mode: bool = True) -> Objective:
        super().train(mode)
        for name in self._stay_in_eval:
            self.get_submodule(name).training = False
        return self

    def forward(
        self, inputs: Tree, targets: Tree, measure: bool = False
    ) -> Tensor | tuple[Tensor, Tensor]:
        """The mean loss of a batch, a float32 scalar, of which backward passes are taken.

        measure: instead the summed loss, a float64 scalar, and the sums that the task measures.
        """
        return self.loss(call(self.network, inputs), targets, measure)

    def loss(
        self, output: Any, targets: Tree, measure: bool = False
    ) -> Tensor | tuple[Tensor, Tensor]:
        """Return what `forward` does, from the network's output for a batch."""
        loss = self.task.loss(output, targets)
        if not measure:
            return loss
        with user_errors_as_config(self.task, "measure"):
            # NCCL sums no tensors of a CPU, where a task may have counted.
            sums = self.task.measure(output, targets).to(loss.device)
        return loss.to(torch.float64) * rows(targets), sums


def buffers(task: object) -> dict[str, Tensor]:
    """The live buffers in the state_dict of a task, such as a running mean that its loss keeps."""
    if not isinstance(task, nn.Module):
        return {}
    saved, found = task.state_dict(), dict(task.named_buffers())
    return {name: value for name, value in found.items() if name in saved}


@contextmanager
def user_errors_as_config(task: Task, method: str) -> Iterator[None]:
    """Raise an error of the user's code as ConfigError, while `method` of `task` is called."""
    try:
        yield
    except Exception as error:
        if isinstance(error, Failure) or memory_failure(error, "") is not None:
            raise
        wrong, found = f"its `{method}` failed in an evaluation", located(error)
        do = "correct it; the traceback is in the run's log"
        raise ConfigError("task", type(task).__name__, wrong, found, do) from error


def scoring(task: Task) -> Score:
    """Return the Score of a task. Raises ConfigError if it has no direction that there is."""
    said: Any = task.score
    found = said if isinstance(said, Score) else Score(said)
    if found.better not in ("more", "less"):
        allowed = "more and less are allowed as the better"
        do = "correct the attribute `score` of the task"
        raise ConfigError("task.score", one_line(repr(found)), "its direction is none", allowed, do)
    return found


def require_possible(score: Score, found: Scores) -> None:
    """Raise unless `score` can have this value: ConfigError, NumericsError if it is not finite.

    And ConfigError if another figure is no number. A share may be off by a rounding error.
    """
    values: dict[str, Any] = {**found.figures, **found.each, score.name: found.score}
    for name, each in values.items():
        undefined = each is None and name != score.name
        if not undefined and (isinstance(each, bool) or not isinstance(each, int | float)):
            wrong = f"the {name} is no number"
            do = "convert it, as with .item()"
            raise ConfigError("task.scores", one_line(repr(each)), wrong, "scores are floats", do)
        # Another figure may be nan, or infinite, but no int that is more than any float.
        bounded = name == score.name or isinstance(each, int)
        if bounded and not abs(each) <= sys.float_info.max:
            allowed = "any finite number is allowed"
            do = "see what the task's `scores` makes of its sums, or lower optimizer.lr"
            raise NumericsError("task.scores", each, f"the {name} is not finite", allowed, do)
    value = found.score
    if score.unit == SHARE and not -1e-3 <= value <= 1 + 1e-3:
        allowed = "a share from 0 to 1 is allowed where a task gives the name of its score alone"
        do = f'declare what it is, as with score = Score("{score.name}", unit="", better="less")'
        raise ConfigError("task.scores", f"{value:g}", f"the {score.name} is no share", allowed, do)
