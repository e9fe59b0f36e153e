"""What a model is trained for: a task gives a loss to minimize and scores to report."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn
from torch.profiler import record_function

from ninefold.errors import ConfigError, DataError, Failure, located, memory_failure

LOSS = "loss"  # the name of the loss in a profile


@dataclass(frozen=True)
class Scores:
    """What an evaluation says of a model.

    score: the task's score, a share between 0 and 1, more is better.
    others: further figures by name; None: undefined. A figure is a share between 0 and 1, more is
        better, shown in percent; or, where the last word of its name is one of
        ninefold.result.UNITS (`mean error mm`), an error in that unit, less is better.
    each: the score of each class, landmark, ... by name; None: it has no examples.
    table: counts to draw, int64 [true, predicted], for a task that has a confusion matrix.
    each_name: what `each` is, such as IoU.
    counted: what the table counts.
    """

    score: float
    others: Mapping[str, float | None] = field(default_factory=dict)
    each: Mapping[str, float | None] = field(default_factory=dict)
    table: npt.NDArray[np.int64] | None = None
    each_name: str = "accuracy"
    counted: str = "examples"


class Task(Protocol):
    """A loss and what to measure, of a network's output and an example's target.

    output: what the network returns for a batch, float32, examples along dimension 0.
    target: the targets of the same examples, dtype and shape as the dataset has them.

    A task that holds tensors, such as weights of classes, is an nn.Module: they are then moved and
    replicated with the network.

    It may also have `choices(output)`: numbers [..., m] of which the largest is what is decided, by
    which an exported network is compared with its original.
    """

    @property
    def score(self) -> str:
        """The name of the score as a noun, which all output uses: `accuracy`, `mean IoU`.

        A name that begins with "within" (`within 4 mm`) is reported as "share within 4 mm".
        """

    def loss(self, output: Tensor, target: Tensor) -> Tensor:
        """A float32 scalar: the mean over the examples of a number that each gives alone.

        A mean over all valid pixels or points of a batch would not do: the mean over the
        processes would then depend on how the examples are spread over them.
        """

    def measure(self, output: Tensor, target: Tensor) -> Tensor:
        """Sums that add up over batches and processes: a tensor of fixed shape and dtype."""

    def scores(self, sums: Tensor, names: Sequence[str]) -> Scores:
        """What the sums over a whole set say. names: of the classes, empty where unknown."""


class Objective(nn.Module):
    """A network and its task in one module: what a parallel strategy wraps and calls.

    The loss is computed where the network runs, so that a strategy that uses several devices
    needs to move numbers only.
    """

    def __init__(self, network: nn.Module, task: Task) -> None:
        super().__init__()
        self.network = network
        self.task = task
        self._recorded = False

    def forward(
        self, inputs: Tensor, targets: Tensor, measure: bool = False
    ) -> Tensor | tuple[Tensor, Tensor]:
        """The mean loss of a batch, a float32 scalar; with `measure` as `measure` returns."""
        return self.judge(self.network(inputs), targets, measure)

    def measure(self, inputs: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
        """The summed loss of a batch, a float64 scalar, and the sums that the task measures."""
        loss, sums = self.judge(self.network(inputs), targets, measure=True)
        return loss, sums

    def judge(
        self, output: Tensor, targets: Tensor, measure: bool = False
    ) -> Tensor | tuple[Tensor, Tensor]:
        """What `forward` returns, from the network's output for a batch."""
        if self._recorded:
            with record_function(LOSS):
                loss = self.task.loss(output, targets)
        else:
            loss = self.task.loss(output, targets)
        if not measure:
            return loss
        with told(self.task, "measure"):
            sums = self.task.measure(output, targets)
        return loss.to(torch.float64) * len(targets), sums

    @contextmanager
    def recorded(self) -> Iterator[None]:
        """In the block, a profiler records the loss as the range `loss`, which costs 6 µs."""
        self._recorded = True
        try:
            yield
        finally:
            self._recorded = False


@contextmanager
def told(task: Task, method: str) -> Iterator[None]:
    """In the block `method` of `task` is called: an error of its code is raised as ConfigError."""
    try:
        yield
    except Exception as error:
        if isinstance(error, Failure) or memory_failure(error, "") is not None:
            raise
        said = f"{type(error).__name__}: {error}".rstrip(": ")
        raise ConfigError(
            "task",
            type(task).__name__,
            f"its `{method}` failed in an evaluation; {located(error, said)}; correct it; the "
            "traceback is in the run's log",
        ) from error


def named(names: Sequence[str], count: int) -> list[str]:
    """`names` if they are `count` different ones, else the numbers from 0."""
    return list(names) if len(set(names)) == count else [str(number) for number in range(count)]


def unlabeled(label: str, found: str) -> DataError:
    """The failure of a set of which nothing is scored: no example of it has a `label`."""
    return DataError(
        "dataset",
        "test",
        f"no example of the set has {label}, so that there is nothing to score; {found}; see its "
        "labels; a validation split (dataset.val) needs some too",
    )


def counted(cells: Tensor, size: int) -> Tensor:
    """How often each number below `size` occurs in `cells`, int64 [n, ...]: int64 [size]."""
    if cells.device.type == "cpu":
        return torch.bincount(cells.flatten(), minlength=size)
    return added(cells, size)


def added(cells: Tensor, size: int) -> Tensor:
    """What `counted` returns, without a wait for the device: there bincount reads the extremes.

    Pixels [n, ...] are counted for each example apart: where most are of one class, additions to a
    single number would wait for each other.
    """
    parts = len(cells) if cells.ndim > 1 else 1
    first = torch.arange(parts, device=cells.device)[:, None] * size
    places = (cells.reshape(parts, -1) + first).flatten()
    counts = places.new_zeros(parts * size).index_add_(0, places, torch.ones_like(places))
    return counts.view(parts, size).sum(dim=0)
