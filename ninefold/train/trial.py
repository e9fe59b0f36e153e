"""Tries the whole of a run on its first examples before it starts: a training step, an evaluation.

What is tried are copies, and the random generators are restored: a run that is tried trains as one
that is not, to the last bit. It takes milliseconds where network and loss run on the meta device,
whose tensors have shapes only. What fails there is tried again with real numbers, which decide.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, TypeVar

import torch
from torch import Tensor, nn

from ninefold.dataset.draws import generators
from ninefold.engine.task import Task
from ninefold.errors import ConfigError, DataError, Failure, located, memory_failure
from ninefold.model import not_a_tensor, on_meta, picked
from ninefold.task.loss import explained
from ninefold.tree import call, each, leaves, rows, shapes

SPREAD = 64  # examples that `scores` is tried with, where it fails on two
VALUES = 2**24  # of outputs that are made up for that

Batch = tuple[Any, Any]  # inputs and targets, prepared
T = TypeVar("T")


@dataclass(frozen=True)
class Trial:
    """What is tried, and what it is called in error lines.

    network: as it is trained, on the CPU. part, name: the key model.output, and the model's option.
    task, option: the task, and its option. own: the target of the user's own loss.
    device: where the run will be.
    """

    network: nn.Module
    part: str | int | None
    name: str
    task: Task
    option: str
    own: str | None
    device: torch.device

    def step(self, batch: Batch, least: int, batch_size: int) -> None:
        """Raise ConfigError if a training step cannot be taken: forward, loss and backward.

        batch: of the first two examples, as training prepares them; or of the only one.
        least: the fewest examples that a device computes at once. batch_size: for the error.
        """
        sizes = [batch] if least > 1 else [batch, first(batch)]
        for some in sizes:
            with generators(0, 0), torch.enable_grad():
                if self._passes_on_meta(some):
                    continue
                error = self._real_error(some)
            if error is None:
                continue
            found = located(error, f"{type(error).__name__}: {error}".rstrip(": "))
            if some is not batch:
                raise ConfigError(
                    "batch_size",
                    batch_size,
                    "a device computes 1 example at a time, which this model cannot be trained on; "
                    f"{found}; choose a larger batch_size, or fewer processes or micro-batches",
                ) from error
            raise ConfigError(
                "model",
                self.name,
                f"a training step fails on examples of {shapes(some[0])}; {found}; correct it, or "
                "choose another model, task or dataset",
            ) from error

    def evaluation(
        self,
        batch: Batch,
        more: Callable[[int], Any],
        sizes: set[int],
        names: Sequence[str] = (),
    ) -> None:
        """Raise ConfigError if the task's loss, `measure` or `scores` fails in an evaluation.

        They are called with random outputs in the shape of the network's and, where they fail, with
        real ones. `scores` may fail only because two examples are so few: it is then called on
        SPREAD of them too, and a division by zero is no failure.

        batch: of the first two examples, as evaluations prepare them; or of the only one.
        more: gives the targets of at most so many examples, from all over the set.
        sizes: of the batches of the evaluation. names: of the classes.
        """
        with generators(0, 0), torch.no_grad():
            shape = self._judged(batch, more, {(), tuple(names)})
            if 1 not in sizes and len(sizes) == 1:
                return
            try:
                of_one = self._judged(first(batch), more, set())
            except ConfigError:
                if 1 not in sizes:
                    return
                raise
        if shape is not None and of_one is not None and shape != of_one:
            raise ConfigError(
                "task",
                self.option,
                f"what its `measure` returns depends on the size of a batch; {list(shape)} for two "
                f"examples, {list(of_one)} for one; return sums over the examples",
            )

    @cached_property
    def _meta(self) -> nn.Module:
        """The network on the meta device. Raises what copying it raises."""
        return on_meta(self.network)

    def _passes_on_meta(self, batch: Batch) -> bool:
        """Whether a training step works on tensors without values; False: real ones decide."""
        try:
            task = on(copied(self.task), "meta", True)
            loss = self._loss(self._meta.train(), task, on(batch, "meta"))
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

    def _real_error(self, batch: Batch) -> Exception | None:
        """Why a training step fails with real numbers, on the device; None: not known to."""
        try:
            network = copy.deepcopy(self.network)
        except Exception:  # it cannot be copied: the first step of the run will tell
            return None
        try:
            task = on(copied(self.task), self.device, True)
            network = network.to(self.device).train()
            self._backward(self._loss(network, task, on(batch, self.device)))
        except Failure:
            raise
        except Exception as error:
            return None if memory_failure(error, "") else error
        return None

    def _loss(self, network: nn.Module, task: Task, batch: Batch) -> Tensor:
        """The loss of a batch. Raises what network and loss raise, or why the output has none."""
        inputs, targets = batch
        output = picked(call(network, inputs), self.part, self.name)
        loss = task.loss if self.own is None else explained(task.loss, self.own)
        try:
            return loss(output, targets)
        except Exception as error:
            if isinstance(output, Tensor) or leaves(inputs)[0].is_meta:
                raise
            raise not_a_tensor(output, self.part, self.name) from error

    def _backward(self, loss: Tensor) -> None:
        if any(parameter.requires_grad for parameter in self.network.parameters()):
            loss.backward()

    def _judged(
        self, batch: Batch, more: Callable[[int], Any], all_names: set[tuple[str, ...]]
    ) -> torch.Size | None:
        """The shape of what `measure` returns; None: not known. Raises ConfigError if it fails.

        all_names: the names of classes to call `scores` with, one set after the other.
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
                for names in all_names:
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
            output = picked(call(self._meta.eval(), on(inputs, "meta")), self.part, self.name)
        except Exception:
            output = None
        if output is not None:
            yield made_up(output), targets, False
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
                f"an evaluation fails on {rows(inputs)} example(s) of "
                f"{shapes(inputs)}; {located(error, f'{type(error).__name__}: {error}')}; correct "
                "it, or choose another model or dataset",
            ) from error
        yield real, targets, True
        if output is not None:
            values = sum(leaf.numel() for leaf in leaves(output) if isinstance(leaf, Tensor))
            targets = more(min(SPREAD, max(2, VALUES // max(1, values))))
            yield made_up(output, rows(targets)), targets, False

    def _failure(self, called: str, error: Exception, output: Any, targets: Any) -> ConfigError:
        found = located(error, f"{type(error).__name__}: {error}".rstrip(": "))
        failure = ConfigError(
            "task",
            self.option,
            f"its `{called}` fails in an evaluation, on outputs {shapes(output)} and targets "
            f"{shapes(targets)} of {rows(targets)} example(s); {found}; correct it, "
            "or choose another task or dataset",
        )
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


def parts(examples: int, replicas: int) -> set[int]:
    """Sizes of the parts in which `replicas` devices compute so many examples, as torch.chunk."""
    each = -(-examples // replicas)
    return {min(each, examples - start) for start in range(0, examples, max(1, each))}


def evaluated_in(count: int, batch_size: int, processes: int, replicas: int) -> set[int]:
    """Sizes of all batches in an evaluation of `count` examples, see dataset.batches.shard.

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
