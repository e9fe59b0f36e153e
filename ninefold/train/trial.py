"""Tries a run on its first examples before it starts: an evaluation and a training step.

What is tried are copies, and the random generators are restored: a run that is tried trains as one
that is not, to the last bit.
"""

from __future__ import annotations

import copy
import gc
import math
import weakref
from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass, field
from functools import cached_property, partial
from statistics import fmean, variance
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.modules.module import register_module_forward_pre_hook

from ninefold.dataset import Examples
from ninefold.dataset.arrays import Rows
from ninefold.dataset.items import TO_TENSOR, generators
from ninefold.dataset.loader import HostSource
from ninefold.engine.batches import Preparation
from ninefold.engine.parallel import RankContext
from ninefold.engine.task import Objective, Task
from ninefold.errors import (
    NOT_DETERMINISTIC,
    ConfigError,
    DataError,
    Failure,
    first_few,
    located,
    memory_failure,
    text_of,
    users_line,
)
from ninefold.model import not_a_tensor, picked
from ninefold.task.other_parameters import other_parameters
from ninefold.tree import call, each, leaves, moved, rows, shapes

# In torch's errors.
OF_DTYPES = "dtype", "scalar type", "point type", "output type", "not implemented for '"

Batch = tuple[Any, Any]  # inputs and targets, prepared


@dataclass(frozen=True)
class Trial:
    """A network and a task to try, and what they are called in error lines.

    network: as it is trained, on the CPU. part, name: the key model.output, and the model's option.
    task, option: the task, and its option. own: the target of the user's own loss.
    context: where the run will be. in_autocast: the classes of modules that the network has called
    in an autocast of its own so far.
    """

    network: nn.Module
    part: str | int | None
    name: str
    task: Task
    option: str
    own: str | None
    context: RankContext
    in_autocast: set[str] = field(default_factory=set)

    @cached_property
    def _copy(self) -> Objective | None:
        """Copies of network and task on the device; None where they cannot be copied, or have no
        room: the first step tells.
        """
        try:
            network, task = copy.deepcopy((self.network, self.task))
            return Objective(network, task).to(self.context.device)
        except Exception:
            return None

    def step(
        self, train: Examples, prepare: Preparation, seed: int, batch_size: int, accumulate: int
    ) -> list[str]:
        """Return the trained parameters without a gradient after a training step: they are unused.

        A step of two examples, and of one where a device computes one at a time. If that leaves
        parameters unused, as experts that none of two examples chooses, one of a whole batch.
        Raises ConfigError if the step cannot be taken: forward, loss and backward.
        """

        def batch_of(count: int) -> Batch:
            return prepared(train, prepare, seed, np.arange(min(count, len(train))))

        two = batch_of(2)
        if (parts := accumulate * len(self.context.devices)) > 1:
            for leaf in leaves(two):  # raises for what cannot be cut
                leaf.chunk(parts)
        micro_batch = batch_size // self.context.world_size // accumulate
        part = -(-micro_batch // len(self.context.devices))  # as torch.chunk has them
        alone = part == 1 or micro_batch % part == 1
        for batch in [two, each(lambda leaf: leaf[:1], two)] if alone else [two]:
            with generators(0, 0), torch.enable_grad():
                error = self._error_of_step(batch)
            if error is None:
                continue
            if NOT_DETERMINISTIC in text_of(error):
                raise error  # which is about a key, and not about the model
            found = located(error)
            if batch is not two:
                wrong = (
                    "a device computes 1 example at a time, which this model cannot be trained on"
                )
                do = "choose a larger batch_size, or fewer processes or micro-batches"
                raise ConfigError("batch_size", batch_size, wrong, found, do) from error
            do = _conversion(batch, error) or "correct it, or choose another model, task or dataset"
            wrong = f"a training step fails on examples of {shapes(batch[0])}"
            raise ConfigError("model", self.name, wrong, found, do) from error
        if self._unused() and micro_batch > 2:
            with generators(0, 0), torch.enable_grad():
                self._error_of_step(batch_of(micro_batch))
        return self._unused()

    def has_mean_loss(self, train: Examples, prepare: Preparation, seed: int) -> bool | None:
        """Return whether the loss of a batch is the mean of the losses of its halves.

        Only then do the parts of a batch, on several processes or one after the other, train what
        the whole batch does. It is computed in float32 and evaluation mode, of 32 examples and of
        each four of these: where a loss weights its examples, few differ more in their weights. Of
        a loss that draws random numbers, what eight draws explain is no difference: seven standard
        errors, which a mean exceeds once in 100,000 times.
        None: not known, as where the loss cannot be computed so.
        """
        count, small = min(32, len(train)) // 2 * 2, 4
        if count < 2:
            return None
        some = np.linspace(0, len(train) - 1, count).astype(np.int64)
        whole = prepared(train, prepare, seed, some)
        drawn = [self._halved(whole, draw) for draw in range(2)]
        if not math.isfinite(drawn[0][0]):
            return None
        if drawn[0] != drawn[1]:
            drawn += [self._halved(whole, draw) for draw in range(2, 8)]
            wholes, means = zip(*drawn, strict=True)
            error = math.sqrt((variance(wholes) + variance(means)) / len(drawn))
            return _are_same(fmean(wholes), fmean(means), 7 * error)
        parts = [slice(n, n + small) for n in range(0, count - small + 1, small)]
        pairs = [drawn[0], *(self._halved(whole, 0, some) for some in parts)]
        return all(_are_same(*pair) for pair in pairs if math.isfinite(pair[0]))

    def _halved(self, batch: Batch, draw: int, some: slice = slice(None)) -> tuple[float, float]:
        """The loss of `some` of a batch and the mean of their halves'; nan where it has none.

        draw: the number that random generators are seeded by.
        """
        for gradients in (False, True):  # a gradient penalty takes some
            with generators(0, draw), torch.set_grad_enabled(gradients):
                try:
                    own = each(lambda leaf: leaf[some], batch)
                    halves = [each(partial(_every_second, n), own) for n in (0, 1)]
                    return self._loss(own), fmean(map(self._loss, halves))
                except Exception:  # a detector has no loss in evaluation mode
                    continue
        return math.nan, math.nan

    def evaluation(self, test: Examples, prepare: Preparation, names: Sequence[str] = ()) -> bool:
        """Return whether an evaluation needs gradients enabled: the loss or the network takes some.

        Raises ConfigError if the network or the task's loss, `measure` or `scores` fails. `scores`
        may fail only because two examples are so few: it is then called on 64 of them too, and a
        division by zero is no failure. names: of the classes.
        """
        gradients, failure = False, self._failure(test, prepare, names, gradients=False)
        if failure is not None and _wants_gradients(failure):
            gradients, failure = True, self._failure(test, prepare, names, gradients=True)
        if failure is not None:
            raise failure
        return gradients

    def _failure(
        self, test: Examples, prepare: Preparation, names: Sequence[str], gradients: bool
    ) -> ConfigError | None:
        """Why an evaluation fails; None: not known to."""
        failure: ConfigError | None = None
        for count in (2, 64):
            some = np.linspace(0, len(test) - 1, min(count, len(test))).astype(np.int64)
            with generators(0, 0), torch.set_grad_enabled(gradients):
                called, failure = self._failure_of_batch(prepare(*read(test, some), None), names)
            if called != "scores":
                return failure
        return None if failure and isinstance(failure.__cause__, ArithmeticError) else failure

    def _unused(self) -> list[str]:
        """The trained parameters without a gradient, after steps that were tried."""
        if self._copy is None:
            return []
        named = self._copy.network.named_parameters()
        trained = [each for each in named if each[1].requires_grad]
        unused = [name for name, parameter in trained if parameter.grad is None]
        return unused if len(unused) < len(trained) else []  # no step was taken

    def _output(self, inputs: Any, training: bool = False) -> Any:
        """What the task gets of inputs on the device, network and task in this mode."""
        assert self._copy is not None
        network = self._copy.train(training).network
        with register_module_forward_pre_hook(self._see):
            return picked(call(network, inputs), self.part, self.name)

    def _see(self, module: nn.Module, inputs: Any) -> None:
        if torch.is_autocast_enabled(self.context.device.type):
            self.in_autocast.add(type(module).__name__)

    def _loss(self, batch: Batch) -> float:
        """The loss of a batch in evaluation mode. Raises whatever it raises."""
        assert self._copy is not None
        inputs, targets = moved(batch, self.context.device)
        return float(self._copy.task.loss(self._output(inputs), targets).detach())

    def _error_of_step(self, batch: Batch) -> Exception | None:
        """Why a training step fails; None: not known to."""
        if self._copy is None:
            return None
        network, task = self._copy.network, self._copy.task
        try:
            inputs, targets = batch = moved(batch, self.context.device)
            output = self._output(inputs, training=True)
            try:
                loss = task.loss(output, targets)
            except Exception as error:
                if isinstance(output, Tensor) or _picks(error):
                    raise
                raise not_a_tensor(output, self.part, self.name) from error
            if any(parameter.requires_grad for parameter in network.parameters()):
                loss.backward()
            known = [*network.parameters(), *leaves(batch)]
            others = [weakref.ref(leaf) for leaf in other_parameters(loss, known)]
            del output, loss
            self._require_registered(others)
        except Failure:
            raise
        except Exception as error:
            return error if _is_known(error) else None
        return None

    def _require_registered(self, left: Sequence[weakref.ref[Tensor]]) -> None:
        """Raise ConfigError if a leaf is left after its step. One that a step makes for itself, as
        for a gradient penalty, is gone.
        """
        if left:
            gc.collect()
        shapes = [str(list(leaf.shape)) for each in left if (leaf := each()) is not None]
        if shapes:
            wrong = (
                "its loss depends on parameters that the network lacks, which no run would train"
            )
            found = f"they are of shapes {first_few(shapes)}"
            do = "register them in the network, or turn their requires_grad off"
            raise ConfigError("model", self.name, wrong, found, do)

    def _failure_of_batch(
        self, batch: Batch, names: Sequence[str]
    ) -> tuple[str | None, ConfigError | None]:
        """What fails in an evaluation of a batch, forward, loss, measure or scores, and why."""
        if self._copy is None:
            return None, None
        task = self._copy.task
        called, output = "forward", None
        inputs, targets = moved(batch, self.context.device)
        try:
            output = self._output(inputs)
            called = "loss"
            task.loss(output, targets)
            called = "measure"
            sums = task.measure(output, targets).clone()
            called = "scores"
            _ = task.scores(sums, names).score
        except DataError:  # these examples have nothing to score
            return None, None
        except Failure:
            raise
        except Exception as error:
            if not _is_known(error):
                return None, None
            failure = self._failure_of(called, error, batch, output)
            failure.__cause__ = error
            return called, failure
        return None, None

    def _failure_of(self, called: str, error: Exception, batch: Batch, output: Any) -> ConfigError:
        inputs, targets = batch
        found = located(error)
        if called == "forward":
            wrong = f"it fails in evaluation mode on examples of {shapes(inputs)}"
            do = "choose another model, dataset or task, or set model.input_size"
            do = _conversion(batch, error) or do
            return ConfigError("model", self.name, wrong, found, do)
        which = f"on outputs {shapes(output)} and targets {shapes(targets)} of {rows(targets)} "
        if called == "loss" and not isinstance(output, Tensor) and not _picks(error):
            return not_a_tensor(output, self.part, self.name)
        if called == "loss" and self.own is not None:
            do = _conversion(batch, error) or "correct it or its arguments, or choose another"
            return ConfigError("task.loss", self.own, f"it fails {which}example(s)", found, do)
        wrong = f"its `{called}` fails in an evaluation, {which}example(s)"
        do = _conversion(batch, error) or "correct it, or choose another task, model or dataset"
        return ConfigError("task", self.option, wrong, found, do)


def _conversion(batch: Batch, error: Exception) -> str | None:
    """What the dataset is to convert, where `error` is of bytes of images or of a dtype."""
    inputs = leaves(batch[0])
    if any(
        isinstance(leaf, Tensor) and leaf.dtype == torch.uint8 and leaf.ndim == 4 for leaf in inputs
    ):
        return f"return floats from the dataset: {TO_TENSOR}"
    if any(words in text_of(error) for words in OF_DTYPES):
        return (
            "return inputs as floats, classes as whole numbers (label.long()), other targets as "
            "floats"
        )
    return None


def _is_known(error: Exception) -> bool:
    """Whether an error is about the model: not where memory ran out. Raises those of a device."""
    if memory_failure(error, "") is not None:
        return False
    if isinstance(error, torch.AcceleratorError):
        raise error
    return True


def _picks(error: Exception) -> bool:
    """Whether a loss of the user's failed to take its part out of a model's output."""
    kinds = LookupError, AttributeError
    wrong = isinstance(error, kinds) or "indices must be" in text_of(error)
    return wrong and users_line(error) is not None


def _every_second(first: int, leaf: Any) -> Any:
    """Half of the examples, as a loop has a batch: contiguous, so that a loss may `view` it."""
    half = leaf[first::2]
    return half.contiguous() if isinstance(half, Tensor) else half


def _are_same(whole: float, mean: float, allowed: float = 0.0) -> bool:
    """Whether a loss is the mean of the losses of its halves, but for `allowed`, or a thousandth:
    rounding differs by batch size.
    """
    return abs(whole - mean) <= max(1e-3 * max(abs(whole), abs(mean)), allowed)


def _wants_gradients(failure: ConfigError) -> bool:
    """Whether what failed without gradients may have wanted some, as torch.autograd.grad does."""
    return "does not require grad" in str(failure.__cause__)


def prepared(train: Examples, prepare: Preparation, seed: int, some: Rows) -> Batch:
    """These training examples as the first epoch prepares them, on the CPU."""
    (draw,) = prepare.draws(seed, 0, some[None], HostSource(train).shape, torch.device("cpu"))
    return prepare(*read(train, some), draw)


def read(examples: Examples, some: Rows) -> Batch:
    """Inputs and targets of these examples, as the dataset has them, on the CPU."""
    with closing(HostSource(examples).batches([some], torch.device("cpu"))) as reading:
        return next(reading)
