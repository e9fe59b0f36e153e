"""Tries a run on its first examples before it starts: an evaluation and a training step.

What is tried are copies, and the random generators are restored: a run that is tried trains as one
that is not, to the last bit. It takes milliseconds where network and loss run on the meta device,
whose tensors have shapes only. What fails there is tried again with real numbers, which decide.
"""

from __future__ import annotations

import copy
import inspect
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass
from functools import cached_property
from typing import Any, TypeVar

import numpy as np
import torch
from torch import Tensor, nn

from ninefold.dataset import Examples
from ninefold.dataset.items import generators
from ninefold.dataset.loader import HostSource
from ninefold.engine.batches import Preparation, Rows
from ninefold.engine.parallel import RankContext
from ninefold.engine.task import Task
from ninefold.errors import ConfigError, DataError, Failure, located, memory_failure
from ninefold.model import not_a_tensor, on_meta, picked
from ninefold.tree import Tree, call, each, leaves, rows, shapes

SPREAD = 64  # examples that `scores` is tried with, where it fails on two
VALUES = 2**24  # of outputs that are made up for that

Batch = tuple[Any, Any]  # inputs and targets, prepared
T = TypeVar("T")


@dataclass(frozen=True)
class Trial:
    """A network and a task to try, and what they are called in error lines.

    network: as it is trained, on the CPU. part, name: the key model.output, and the model's option.
    task, option: the task, and its option. own: the target of the user's own loss.
    place: where the run will be.
    """

    network: nn.Module
    part: str | int | None
    name: str
    task: Task
    option: str
    own: str | None
    context: RankContext

    def step(
        self, train: Examples, prepare: Preparation, seed: int, batch_size: int, accumulate: int
    ) -> None:
        """Raise ConfigError if a training step cannot be taken: forward, loss and backward.

        Of two examples, and of one where a device computes one at a time.
        """
        some = np.arange(min(2, len(train)))
        (draw,) = prepare.draws(seed, 0, some[None], HostSource(train).shape, torch.device("cpu"))
        two = prepare(*read(train, some), draw)
        micro_batch = batch_size // self.context.data_size // accumulate
        alone = min(parts(micro_batch, len(self.context.devices))) == 1
        for batch in [two, first(two)] if alone else [two]:
            with generators(0, 0), torch.enable_grad():
                error = None if self._steps_on_meta(batch) else self._error_of_step(batch)
            if error is None:
                continue
            found = located(error, f"{type(error).__name__}: {error}".rstrip(": "))
            if batch is not two:
                raise ConfigError(
                    "batch_size",
                    batch_size,
                    "a device computes 1 example at a time, which this model cannot be trained on; "
                    f"{found}; choose a larger batch_size, or fewer processes or micro-batches",
                ) from error
            raise ConfigError(
                "model",
                self.name,
                f"a training step fails on examples of {shapes(batch[0])}; {found}; correct it, or "
                "choose another model, task or dataset",
            ) from error

    def evaluation(
        self, test: Examples, prepare: Preparation, batch_size: int, names: Sequence[str] = ()
    ) -> None:
        """Raise ConfigError if the network or the task's loss, `measure` or `scores` fails.

        The task is called with random outputs in the shape of the network's and, where it fails,
        with real ones. `scores` may fail only because two examples are so few: it is then called on
        SPREAD of them too, and a division by zero is no failure.

        names: of the classes.
        """

        def targets(count: int) -> Any:
            spread = np.linspace(0, len(test) - 1, min(count, len(test))).astype(np.int64)
            return prepare(*read(test, spread), None)[1]

        sizes = evaluated_in(
            len(test), batch_size, self.context.data_size, len(self.context.devices)
        )
        two = prepare(*read(test, np.arange(min(2, len(test)))), None)
        with generators(0, 0), torch.no_grad():
            shape = self._measured(two, targets, names)
            of_one = self._measured(first(two), targets, None) if 1 in sizes else shape
        if shape is not None and of_one is not None and shape != of_one:
            raise ConfigError(
                "task",
                self.option,
                f"what its `measure` returns depends on the size of a batch; {list(shape)} for two "
                f"examples, {list(of_one)} for one; return sums over the examples",
            )

    @cached_property
    def _on_meta(self) -> nn.Module:
        """The network on the meta device. Raises what copying it raises."""
        return on_meta(self.network)

    def _steps_on_meta(self, batch: Batch) -> bool:
        """Return whether a step works on tensors without values; False: real ones decide."""
        try:
            loss = self._loss(self._on_meta, "meta", batch)
        except Failure:
            raise
        except Exception:
            return False
        try:
            self._backward(loss)
        except NotImplementedError:  # of an operation that knows no shapes
            return True
        except Exception:
            return False
        return True

    def _error_of_step(self, batch: Batch) -> Exception | None:
        """Why a training step fails with real numbers, on the device; None: not known to."""
        try:
            network = copy.deepcopy(self.network)
        except Exception:  # it cannot be copied: the first step of the run will tell
            return None
        try:
            self._backward(self._loss(network.to(self.context.device), self.context.device, batch))
        except Failure:
            raise
        except Exception as error:
            return None if memory_failure(error, "") else error
        return None

    def _loss(self, network: nn.Module, device: torch.device | str, batch: Batch) -> Tensor:
        """The loss of a batch. Raises what network and loss raise, or why the output has none."""
        task, (inputs, targets) = on(copied(self.task), device, True), on(batch, device)
        output = picked(call(network.train(), inputs), self.part, self.name)
        try:
            loss: Tensor = task.loss(output, targets)
        except Exception as error:
            if isinstance(output, Tensor) or device == "meta":
                raise
            raise not_a_tensor(output, self.part, self.name) from error
        return loss

    def _backward(self, loss: Tensor) -> None:
        if any(parameter.requires_grad for parameter in self.network.parameters()):
            loss.backward()

    def _measured(
        self, batch: Batch, more: Callable[[int], Any], names: Sequence[str] | None
    ) -> torch.Size | None:
        """The shape of what `measure` returns; None: not known. Raises ConfigError if it fails.

        more: gives the targets of so many examples, from all over the set. names: of the classes,
        for `scores`; None: it is not called.
        """
        failure: ConfigError | None = None
        for output, targets, real in self._outputs(batch, more):
            task, called = on(copied(self.task), "cpu", False), "loss"
            try:
                task.loss(output, targets)
                called = "measure"
                sums: Any = task.measure(output, targets)
                self._require("measure", sums, isinstance(sums, Tensor), "a tensor of sums")
                called = "scores"
                if names is not None:
                    found = task.scores(sums.clone(), names)
                    self._require("scores", found, hasattr(found, "score"), "an object of Scores")
                return torch.Size(sums.shape)
            except DataError:  # these examples have nothing to score
                return None
            except Failure:
                raise
            except Exception as error:
                if memory_failure(error, "") is not None:
                    return None
                failure = self._failure(called, error, output, targets)
                if real and called != "scores":
                    break  # a real output decides; only for `scores` more examples may help
                if called == "scores" and isinstance(error, ArithmeticError):
                    failure = None  # it may divide by zero for want of examples
        if failure is not None:
            raise failure
        return None

    def _outputs(self, batch: Batch, more: Callable[[int], Any]) -> Iterator[tuple[Any, Any, bool]]:
        """Outputs to try with, their targets, and whether they are real: of the network."""
        inputs, targets = batch
        try:
            output = picked(call(self._on_meta.eval(), on(inputs, "meta")), self.part, self.name)
        except Failure:
            raise
        except Exception:
            output = None
        if output is not None:
            yield made_up(output), targets, False
        require_taken(self.network, inputs, self.name)
        try:
            network = copied(self.network)
            was_training = network.training
            try:
                real = picked(call(network.eval(), inputs), self.part, self.name)
            finally:
                network.train(was_training)
        except Failure:
            raise
        except Exception as error:
            if output is not None or memory_failure(error, "") is not None:
                return
            raise ConfigError(
                "model",
                self.name,
                f"it fails in evaluation mode on examples of {shapes(inputs)}; "
                f"{located(error, str(error).strip() or type(error).__name__)}; choose another "
                "model, dataset or task, or set model.input_size",
            ) from error
        yield real, targets, True
        if output is not None:
            values = sum(leaf.numel() for leaf in leaves(output) if isinstance(leaf, Tensor))
            targets = more(min(SPREAD, max(2, VALUES // max(1, values))))
            yield made_up(output, rows(targets)), targets, False

    def _failure(self, called: str, error: Exception, output: Any, targets: Any) -> ConfigError:
        found = located(error, f"{type(error).__name__}: {error}".rstrip(": "))
        which = f"on outputs {shapes(output)} and targets {shapes(targets)} of {rows(targets)} "
        if called == "loss" and not isinstance(output, Tensor):
            failure = not_a_tensor(output, self.part, self.name)
        elif called == "loss" and self.own is not None:
            do = "correct it or its arguments, or choose another"
            failure = ConfigError("task.loss", self.own, f"it fails {which}example(s)", found, do)
        else:
            wrong = f"its `{called}` fails in an evaluation, {which}example(s)"
            do = "correct it, or choose another task, model or dataset"
            failure = ConfigError("task", self.option, wrong, found, do)
        failure.__cause__ = error
        return failure

    def _require(self, called: str, found: object, holds: bool, wanted: str) -> None:
        if not holds:
            raise ConfigError(
                "task",
                self.option,
                f"its `{called}` returns an object of type {type(found).__name__}; {wanted} is "
                "needed; correct it",
            )


def require_taken(model: nn.Module, inputs: Tree, name: str) -> None:
    """Raise ConfigError if the network does not take so many inputs, or inputs of these names."""
    try:
        parameters = inspect.signature(model.forward).parameters.values()
        call(inspect.signature(model.forward).bind, inputs)
    except ValueError:  # of a function in C
        return
    except TypeError as error:
        given = list(inputs) if isinstance(inputs, dict) else len(leaves(inputs))
        names = ", ".join(each.name for each in parameters) or "nothing"
        raise ConfigError(
            "model",
            name,
            f"it does not take what an item has ({error}); the item's inputs are {given}, the "
            f"network takes {names}; return a dict with these names, or a tuple in their order, "
            "from the dataset",
        ) from error


def read(examples: Examples, some: Rows) -> Batch:
    """Inputs and targets of these examples, as the dataset has them, on the CPU."""
    with closing(HostSource(examples).batches([some], torch.device("cpu"))) as reading:
        return next(reading)


def parts(examples: int, replicas: int) -> set[int]:
    """Sizes of the parts in which `replicas` devices compute so many examples, as torch.chunk."""
    each = -(-examples // replicas)
    return {min(each, examples - start) for start in range(0, examples, max(1, each))}


def evaluated_in(count: int, batch_size: int, processes: int, replicas: int) -> set[int]:
    """Sizes of all batches in an evaluation of `count` examples, see engine.batches.shard.

    replicas: devices of each process.
    """
    size = max(1, batch_size // processes)
    found: set[int] = set()
    for mine in {len(range(part, count, processes)) for part in range(processes)}:
        for batch in {min(size, mine), mine % size} - {0}:
            found |= parts(batch, replicas)
    return found


def copied(value: T) -> T:
    """A copy of a network or a task, which a trial may change; itself where it cannot be copied."""
    try:
        return copy.deepcopy(value)
    except Exception:
        return value


def on(value: Any, device: torch.device | str, training: bool | None = None) -> Any:
    """A batch, or a copied task of which some hold tensors, on `device`."""
    if training is None:
        return each(lambda leaf: leaf.to(device) if isinstance(leaf, Tensor) else leaf, value)
    return value.to(device).train(training) if isinstance(value, nn.Module) else value


def first(batch: Any) -> Any:
    """The first example of a batch, as a batch."""
    return each(lambda leaf: leaf[:1] if isinstance(leaf, Tensor) else leaf, batch)


def made_up(output: Any, count: int | None = None) -> Any:
    """Random values from 0 to 1 in the shape of an output; zeros where it has whole numbers.

    count: of examples, in place of those that it has.
    """

    def values(leaf: Any) -> Any:
        if not isinstance(leaf, Tensor):
            return leaf
        shape = leaf.shape if count is None else (count, *leaf.shape[1:])
        make = torch.rand if leaf.is_floating_point() else torch.zeros
        return make(shape, dtype=leaf.dtype)

    return each(values, output)
