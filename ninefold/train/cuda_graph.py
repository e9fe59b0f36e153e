"""graph=true: a training step recorded as one CUDA graph, which the host starts by one call."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor

from ninefold.engine.clock import Clock
from ninefold.engine.parallel import RankContext
from ninefold.engine.state import State
from ninefold.engine.training import NoGraph, Update
from ninefold.errors import ConfigError, Failure, memory_failure, text_of
from ninefold.tree import Tree, each, leaves, named

REPLACED = ["lr", "capturable"]  # options of a parameter group, while a step is computed


class Recorder(Protocol):
    """Records operations of a device."""

    def record(self, compute: Callable[[], Tensor]) -> tuple[Tensor, Callable[[], None]]:
        """Record the operations of `compute`, which are not executed meanwhile.

        Returns a function that executes them, on the tensors they were recorded with, and the
        tensor that holds the result of `compute` after it.
        """


class CudaGraphs:
    """Records CUDA graphs of a GPU, which must be the current one."""

    def __init__(self, device: torch.device) -> None:
        self._stream = torch.cuda.Stream(device)  # torch's own may be of another GPU

    def record(self, compute: Callable[[], Tensor]) -> tuple[Tensor, Callable[[], None]]:
        """See Recorder. Raises ConfigError if `compute` waits for the device."""
        recorded = torch.cuda.CUDAGraph()
        failure: Exception | None = None
        gc.collect()  # cycles may hold memory, and backward passes that know another stream
        try:
            # Of other threads nothing is an error: those of the loader may allocate meanwhile.
            with torch.cuda.graph(recorded, stream=self._stream, capture_error_mode="thread_local"):
                try:
                    result = compute()
                except Exception as error:
                    failure = error  # ending a recording that has failed is an error as well
                    raise
        except Exception as error:
            failure = failure or error
        else:
            return result, recorded.replay
        raise explained(failure)


def explained(error: Exception) -> Exception:
    """The failure for `error`, raised in a recording; those of memory and ours are themselves."""
    if isinstance(error, Failure) or memory_failure(error, "a CUDA graph was being recorded"):
        return error
    said = next((line for line in text_of(error).splitlines() if line), type(error).__name__)
    failure = ConfigError(
        "graph",
        "true",
        f"the training step cannot be recorded ({said}); a model, loss or library that waits for "
        "the device in a step, as .item() does, is not allowed with it; set graph=false, or see "
        "the traceback in run.log",
    )
    failure.__cause__ = error
    return failure


class RateTensors:
    """An optimizer's learning rates as tensors, which a recorded step reads anew each time.

    Outside `in_force` the optimizer has its rates as numbers, so that schedule, logs and
    checkpoints are those of a run without a graph.
    """

    def __init__(self, optimizer: torch.optim.Optimizer, device: torch.device) -> None:
        self._optimizer = optimizer
        # CUDA's fused kernels take a rate as float32, a CPU's as float64.
        dtype = torch.float32 if device.type == "cuda" else torch.float64
        count = len(optimizer.param_groups)
        self._tensors = [torch.zeros((), dtype=dtype, device=device) for _ in range(count)]
        self._values: list[float | None] = [None] * count

    def follow(self) -> None:
        """Set the tensors to the rates that the schedule has set."""
        for number, group in enumerate(self._optimizer.param_groups):
            if group["lr"] != self._values[number]:
                self._values[number] = group["lr"]
                self._tensors[number].fill_(group["lr"])

    @contextmanager
    def in_force(self) -> Iterator[None]:
        """A context in which the optimizer reads the tensors, and may be recorded."""
        groups = self._optimizer.param_groups
        kept = [{key: group[key] for key in REPLACED if key in group} for group in groups]
        for group, tensor in zip(groups, self._tensors, strict=True):
            group["lr"] = tensor
            if "capturable" in group:
                group["capturable"] = True
        try:
            yield
        finally:
            for group, values in zip(groups, kept, strict=True):
                group.update(values)

    def others(self) -> list[dict[str, Any]]:
        """The options of each parameter group besides its rate: a recorded step has them fixed."""
        return [{**group, "lr": None, "params": None} for group in self._optimizer.param_groups]


@dataclass(frozen=True)
class CapturedStep:
    """A recorded step: the tensors it reads and writes, what executes it, and what it has fixed."""

    inputs: Tree
    targets: Tree
    loss: Tensor
    execute: Callable[[], None]
    options: list[dict[str, Any]]

    def take(self, inputs: Tree, targets: Tree, options: list[dict[str, Any]]) -> Tensor:
        """Execute the step with this batch; returns its loss.

        Raises ConfigError if the batch has another shape than the recorded one, or an optimizer's
        option has another value.
        """
        for (name, static), given in (
            *zip(named(self.inputs, "inputs"), leaves(inputs), strict=True),
            *zip(named(self.targets, "targets"), leaves(targets), strict=True),
        ):
            if (given.shape, given.dtype) != (static.shape, static.dtype):
                raise ConfigError(
                    "graph",
                    "true",
                    f"the {name} of a batch are {list(given.shape)} {given.dtype}; the recorded "
                    f"step takes {list(static.shape)} {static.dtype}; set graph=false for data "
                    "whose batches differ",
                )
        if options != self.options:
            raise ConfigError(
                "graph",
                "true",
                "the scheduler sets more of the optimizer than the learning rate; a recorded step "
                f"has {changed(self.options, options)} fixed; choose another scheduler, or set "
                "graph=false",
            )
        for static, given in zip(
            leaves((self.inputs, self.targets)), leaves((inputs, targets)), strict=True
        ):
            static.copy_(given, non_blocking=True)
        self.execute()
        return self.loss.clone()  # the next step writes to the recorded one


def changed(before: list[dict[str, Any]], now: list[dict[str, Any]]) -> str:
    """The names of the options whose values differ."""
    pairs = zip(before, now, strict=True)
    return ", ".join(sorted({key for a, b in pairs for key in {**a, **b} if a.get(key) != b[key]}))


class Graph(NoGraph):
    """Records the step once and replays it from then on.

    Computed as written, by the same operations, are: the first step, and the first after `state`
    was restored, in which the optimizer and libraries allocate what they keep; steps inside `off`,
    which have the memory of the recorded one. What is restored may be in other tensors, so the step
    is then recorded anew. That does not count on the clock. A replay has no phases of its own.
    """

    records = True

    def __init__(
        self, state: State, clock: Clock, recorder: Recorder, device: torch.device
    ) -> None:
        self._state = state
        self._clock = clock
        self._recorder = recorder
        self._rates = RateTensors(state.optimizer, device)
        self._restores: int | None = None  # `state.restores` as of the latest step
        self._recording: CapturedStep | None = None
        self._off = False

    def computing(self, update: Update) -> Update:
        def as_written(inputs: Tree, targets: Tree) -> Tensor:
            with self._rates.in_force():
                return update(inputs, targets)

        def compute(inputs: Tree, targets: Tree) -> Tensor:
            self._clock.end_step()
            self._rates.follow()
            first = self._restores != self._state.restores
            if first:
                self._restores, self._recording = self._state.restores, None
            if first or self._off:
                return as_written(inputs, targets)
            if self._recording is None:
                with self._clock.paused():
                    self._recording = self._record(as_written, inputs, targets)
            return self._recording.take(inputs, targets, self._rates.others())

        return compute

    @contextmanager
    def off(self) -> Iterator[None]:
        before, self._off, self._recording = self._off, True, None
        try:
            yield
        finally:
            self._off = before

    def _record(self, update: Update, inputs: Tree, targets: Tree) -> CapturedStep:
        inputs, targets = each(lambda value: value.clone(), (inputs, targets))
        loss, execute = self._recorder.record(lambda: update(inputs, targets))
        return CapturedStep(inputs, targets, loss, execute, self._rates.others())


def step_graph(wanted: bool, state: State, clock: Clock, context: RankContext) -> NoGraph:
    """Return what computes the steps of a run at `context`; a graph on CUDA alone.

    Raises ConfigError if a graph is `wanted` for more than one GPU.
    """
    if not wanted or context.device.type != "cuda":
        return NoGraph()
    if (count := max(context.replicas, len(context.devices))) > 1:
        raise ConfigError(
            "graph",
            "true",
            f"a CUDA graph is recorded of one process on one GPU; the run has {count}; show it "
            "one GPU (CUDA_VISIBLE_DEVICES=0), or set graph=false",
        )
    return Graph(state, clock, CudaGraphs(context.device), context.device)


def notes(wanted: bool, device: torch.device) -> list[str]:
    """Sentences about what graph=true does not do, or not for all steps, on `device`."""
    if not wanted:
        return []
    if device.type != "cuda":
        return ["graph=true is a no-op on a CPU: it records the step as a CUDA graph."]
    return ["graph=true: data and transfer are its only phases; a profile is of steps without it."]
