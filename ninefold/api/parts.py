"""What the configuration of a comparison names: the caller's network, loss and optimizer."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy

from ninefold.api.capsule import load
from ninefold.dataset.arrays import Rows
from ninefold.dataset.collated import Collated
from ninefold.dataset.items import generators
from ninefold.engine.task import Scores
from ninefold.errors import ConfigError, located
from ninefold.numbers import counted
from ninefold.score import LOSS, Score
from ninefold.task.loss import mean_over_examples
from ninefold.tree import Tree, rows

ACCURACY = "accuracy"


def network(file: str, sha256: str, name: str) -> nn.Module:
    """The caller's model: what the function returns that makes it, or a copy of the object.

    file, sha256: the objects, see `ninefold.api.capsule`. name: of the model, for errors.
    Raises ConfigError if it is no network.
    """
    with generators(torch.initial_seed() % 2**32):  # the import of a module may draw numbers
        given, forward = (load(file, sha256, part) for part in ("model", "forward"))
    found = given if isinstance(given, nn.Module) else made("model", name, given)
    if not isinstance(found, nn.Module):
        wrong = f"it returns an object of type {type(found).__name__}"
        raise ConfigError("model", name, wrong, "a torch.nn.Module is needed", "return the network")
    for module in found.modules():
        if any(map(is_lazy, (*module.parameters(False), *module.buffers(False)))):
            wrong = f"its {type(module).__name__} has no weights yet"
            allowed = "weights are needed before the first step"
            do = "call it once with a batch, in a function that makes it"
            raise ConfigError("model", name, wrong, allowed, do)
    floats = {weight.dtype for weight in found.parameters() if weight.is_floating_point()}
    for dtype in floats - {torch.float32}:
        wrong = f"its weights are {str(dtype).removeprefix('torch.')}"
        allowed = "float32 is allowed, which inputs become"
        raise ConfigError("model", name, wrong, allowed, "call .float() on it")
    if isinstance(given, nn.Module):  # its buffers are of a file: torch cannot resize these
        for buffer in given.buffers():
            buffer.data = buffer.data.clone()
    return found if forward is None else WithForward(found, forward)


class WithForward(nn.Module):
    """Calls the caller's `forward(model, batch)`, which returns the loss of each example, or one.

    A scalar is expanded to [n]. Raises ConfigError if it returns no tensor.
    """

    def __init__(self, model: nn.Module, function: Callable[[nn.Module, Any], Any]) -> None:
        super().__init__()
        self.model, self.function = model, function

    def forward(self, batch: Any) -> Tensor:
        count = rows(batch)
        given = batch.value if isinstance(batch, Collated) else batch
        loss = self.function(self.model, given)
        if not isinstance(loss, Tensor):
            wrong = "it returns no tensor"
            allowed = "the loss of the batch is needed, as model(**batch).loss"
            raise ConfigError("forward", type(loss).__name__, wrong, allowed, "return that")
        return loss.expand(count) if loss.ndim == 0 else loss


class CallersTask(nn.Module):
    """The task of a comparison: the caller's loss, scored by accuracy, the caller's metric or the
    loss.

    file, sha256: the objects.
    measured: `accuracy`, the name of the metric, or None for the loss.
    """

    def __init__(self, file: str, sha256: str, measured: str | None) -> None:
        super().__init__()
        self.criterion, self.metric = (load(file, sha256, part) for part in ("loss", "metric"))
        self.measured = measured
        self.score: str | Score = Score(LOSS, unit="", better="less")
        if measured is not None:
            self.score = ACCURACY if self.metric is None else Score(measured, "", "more")

    def loss(self, output: Any, target: Any) -> Tensor:
        if self.criterion is None:  # of a `forward`, which returns it
            return mean_over_examples(output, rows(target))
        value = self.criterion(output, target)
        if isinstance(value, Tensor) and value.ndim == 0:
            return value
        return mean_over_examples(value, rows(target))

    def measure(self, output: Any, target: Any) -> Tensor:
        """The sum of what is measured, and the number of examples: float64 [2]."""
        count = rows(target)
        if self.measured is None:
            total = self.loss(output, target) * count
        elif self.metric is not None:
            total = self._mean_metric(output, target, count) * count
        else:
            total = self._hits(output, target)
        total = total.detach().to(torch.float64)
        return torch.stack([total, torch.full_like(total, count)])

    def _mean_metric(self, output: Any, target: Any, count: int) -> Tensor:
        values = self.metric(output, target)
        if isinstance(values, Tensor) and values.ndim and len(values) == count:
            return mean_over_examples(values.double(), count)  # hits are booleans
        found = list(values.shape) if isinstance(values, Tensor) else type(values).__name__
        allowed = f"a tensor of {counted(count, 'value')} is needed"
        do = "return one for each, and none of their means"
        raise ConfigError("metric", found, "it has no number for each example", allowed, do)

    def _hits(self, output: Any, target: Any) -> Tensor:
        classes = isinstance(output, Tensor) and output.ndim == 2 and isinstance(target, Tensor)
        if not classes or target.shape != output.shape[:1]:
            wrong = "it is known only for outputs [n, classes] and targets [n]"
            do = "give metric=function(output, target) with a value for each example"
            raise ConfigError("ask", "accuracy", wrong, "this model's are different", do)
        hits: Tensor = (output.argmax(dim=1) == target).sum()
        return hits

    def scores(self, sums: Tensor, names: Sequence[str]) -> Scores:
        total, count = sums.tolist()
        return Scores(total / count)


def optimizer(parameters: list[Any], file: str, sha256: str, name: str) -> Any:
    """What the caller's function `name`, one of the objects, makes of the trained parameters."""
    return made("optimizer", name, load(file, sha256, "optimizer"), parameters)


def made(field: str, name: str, make: Callable[..., Any], *given: Any) -> Any:
    """What the caller's function `name` returns. Raises ConfigError if it fails."""
    try:
        return make(*given)
    except Exception as error:
        wrong, do = "the function that makes it fails", "correct it there"
        raise ConfigError(field, name, wrong, located(error), do) from error


@dataclass(frozen=True)
class AsItIs:
    """A `Preparation` without scaling and augmentation; an input alone is its own target.

    memory_format: that images [n, c, h, w] get.
    """

    memory_format: torch.memory_format

    def draws(
        self, seed: int, epoch: int, rows: Rows, shape: Tree, device: torch.device
    ) -> Iterable[None]:
        return itertools.repeat(None, len(rows))

    def __call__(self, inputs: Tree, targets: Tree, draw: None) -> tuple[Tree, Tree]:
        if isinstance(inputs, Tensor) and inputs.ndim == 4:
            inputs = inputs.contiguous(memory_format=self.memory_format)
        if isinstance(targets, Tensor) and targets.shape[1:] == (0,):  # items without one
            return inputs, inputs
        return inputs, targets
