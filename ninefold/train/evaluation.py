"""Loss and measure of a network over a whole set, exact on any number of processes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from ninefold.dataset import Examples
from ninefold.dataset.batches import Preparation, shard
from ninefold.parallel import Parallel, Place
from ninefold.task import Task


@dataclass(frozen=True)
class Evaluation:
    """loss: mean over the examples. confusion: int64 [classes, classes + 1], see the task."""

    loss: float
    confusion: Tensor

    @property
    def count(self) -> int:
        return int(self.confusion.sum())

    @property
    def accuracy(self) -> float:
        """The fraction that is right, of integer counts."""
        return int(self.confusion.diagonal().sum()) / self.count

    @property
    def per_class(self) -> list[float | None]:
        """The fraction of each class that is right; None for a class without examples."""
        right, of = self.confusion.diagonal().tolist(), self.confusion.sum(dim=1).tolist()
        return [r / n if n else None for r, n in zip(right, of, strict=True)]


class Unfinished(Exception):
    """A process was told to break the evaluation off."""


@torch.no_grad()
def evaluate(
    forward: nn.Module,
    examples: Examples,
    *,
    batch_size: int,
    prepare: Preparation,
    task: Task,
    parallel: Parallel,
    place: Place,
    workers: int = 0,
    interrupted: Callable[[], bool] = lambda: False,
) -> Evaluation:
    """Measure `forward` on all of `examples`; every process gets the result for all of them.

    Raises Unfinished on all of them if one was `interrupted`, which is asked for each batch, and
    AssertionError if the examples measured are not each counted once.
    """
    was_training = forward.training
    forward.eval()
    loss = torch.zeros((), dtype=torch.float64, device=place.device)
    measure: Tensor | None = None
    broken = torch.zeros((), device=place.device)
    for inputs, targets in shard(examples, batch_size, prepare, place, workers):
        if interrupted():
            broken += 1
            break
        output = forward(inputs)
        loss += task.loss(output, targets).double() * len(targets)
        counts = task.measure(output, targets)
        measure = counts if measure is None else measure + counts
    if parallel.total(broken).item():
        forward.train(was_training)
        raise Unfinished
    if measure is None:  # more processes than examples
        measure = task.measure(*_nothing(examples, place))
    measure = parallel.total(measure)
    forward.train(was_training)
    result = Evaluation(parallel.total(loss).item() / len(examples), measure.cpu())
    assert result.count == len(examples), f"{result.count} of {len(examples)} examples counted"
    return result


def _nothing(examples: Examples, place: Place) -> tuple[Tensor, Tensor]:
    return (
        torch.empty(0, 1, device=place.device),
        torch.empty(0, dtype=torch.int64, device=place.device),
    )
