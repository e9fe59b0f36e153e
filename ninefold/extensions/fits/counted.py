"""Counts the memory of a training step on fake tensors: nothing is computed or allocated.

torch's MemTracker sees each storage of a step come and go, and says what it holds.
"""

from __future__ import annotations

import math
import signal
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from omegaconf import DictConfig, OmegaConf
from torch import Tensor, nn
from torch._prims_common import suggest_memory_format
from torch._subclasses.fake_tensor import (
    DataDependentOutputException,
    DynamicOutputShapeException,
    FakeTensorMode,
    UnsupportedFakeTensorException,
)
from torch.distributed._tools.mem_tracker import MemTracker
from torch.testing._internal.distributed.fake_pg import FakeStore

from ninefold.config.spec import RunSpec
from ninefold.dataset.loader import HostSource
from ninefold.engine.batches import Batches
from ninefold.engine.parallel import RankContext, local_part
from ninefold.engine.parallel.none import Single
from ninefold.engine.task import Objective
from ninefold.errors import ConfigError, Failure, located
from ninefold.extensions.fits import COUNT, PARTS, ROOM, SHARE
from ninefold.files import write_json
from ninefold.signals import SIGNALS
from ninefold.train import build
from ninefold.train.freeze import freeze, kept_frozen
from ninefold.train.optimizer import trained_parameters
from ninefold.train.trial import Batch, prepared, read
from ninefold.train.turns import GPU, HOST, free_memory
from ninefold.tree import chunks, each, leaves

UNKNOWN = (
    DataDependentOutputException, DynamicOutputShapeException, UnsupportedFakeTensorException,
)  # fmt: skip
TAKE_STEPS = "leave memory= out, and real steps are taken"


def count(spec: RunSpec, inline: bool) -> None:
    """Count the step of a job, and its largest batch_size, into COUNT: the command of a worker.

    What a process takes of a GPU, as CUDA's context, ends with it.
    spec.arguments: bytes of a device, None for what is free; the batch_size that is the whole set.
    """
    signal.pthread_sigmask(signal.SIG_UNBLOCK, SIGNALS)
    memory, whole_set = spec.arguments
    with step_of(spec.job_yaml) as step:
        job, context = step.setup.job, step.setup.context
        processes, pair = job.parallel.processes, 2 * job.accumulate  # see largest_part
        if memory is None:
            free = free_memory(context)
            memory = free.get(GPU, math.floor(SHARE * free.get(HOST, 0)))
        part = memory if context.gpus else memory / processes
        own, most = job.batch_size // processes, whole_set // processes
        memory_of, room = cache(step.memory), math.floor(part / ROOM)
        found = memory_of(own)
        largest = largest_part(lambda examples: memory_of(examples)["total"], own, most, pair, room)
        # The whole set may be no multiple of a pair.
        whole = pair <= most < largest + pair and memory_of(most)["total"] <= room
    known = dict.fromkeys(("largest", "counted"), whole_set if whole else largest * processes)
    write_json(spec.folder / COUNT, {**found, **known, "memory": memory, "whole": whole})


def largest_part(
    bytes_of: Callable[[int], int], start: int, most: int, multiple: int, memory: int
) -> int:
    """The most examples of a step, a multiple up to `most`, that `memory` holds; 0: none.

    multiple: two for each micro-batch: batch norm and mixup do not take one example.
    bytes_of: counts a step of so many. What a step holds grows with them, and mostly evenly: a
    straight line through the last two says what to count next, and each third time it is the
    middle, until one that does not fit is at most 2 % larger than one that does.
    """
    fits, fails = 0, (most // multiple + 1) * multiple
    before, size, tries = (0, 0), start, 0
    while fails - fits > max(multiple, 0.02 * fits):
        size = min(max(size // multiple * multiple, fits + multiple), fails - multiple)
        if (found := bytes_of(size)) <= memory:
            fits = size
        else:
            fails = size
        each = max((found - before[1]) / (size - before[0]), 1.0)
        before, tries = (size, found), tries + 1
        size = (fits + fails) // 2 if tries % 3 == 0 else math.floor(size + (memory - found) / each)
    return fits


@dataclass(frozen=True)
class Step:
    """A training step of a job, to be counted with batches of any size.

    setup: of the job, with its precision settled on the device of one process.
    network: its parameters are in `fake`. read, examples: two as the dataset has them, and as the
    network takes them.
    """

    setup: build.Setup
    fake: FakeTensorMode
    network: build.Network
    read: Batch
    examples: Batch

    def memory(self, examples: int) -> dict[str, int]:
        """Count what a process with so many examples holds, at the moment at which it holds most.

        weights: parameters, buffers and the moving average. gradients: those that there are by
        then, and of DDP what its buckets keep. optimizer: its state. activations: all else, as
        temporary tensors and the batch. total: of these. All are bytes.
        Raises ConfigError where the step cannot be counted, as one that depends on values.
        """
        try:
            with self.fake:
                return self._memory(examples)
        except UNKNOWN as error:
            wrong, found = "what its step allocates depends on values", located(error)
        except Failure:
            raise
        except (Exception, SystemExit) as error:
            wrong, found = "its step cannot be taken without values", located(error)
        raise ConfigError("model", build.model_name(self.setup.job), wrong, found, TAKE_STEPS)

    def _memory(self, examples: int) -> dict[str, int]:
        """Count on fake tensors."""
        net, job, device = self.network, self.setup.job, self.setup.context.device
        state = build.state_of(replace(self.setup, parallel=Single()), net, per_epoch=1)
        # A step holds its batch to its end, and what that was made of.
        raw, batch = (
            [each(lambda leaf: like(leaf, examples, device), of) for of in pair]
            for pair in (self.read, self.examples)
        )
        micro_batches = [*zip(*(chunks(of, job.accumulate) for of in batch), strict=True)]
        # DDP's buckets hold the gradients, or a copy of them, all the time.
        views = getattr(self.setup.parallel, "gradient_as_bucket_view", None)
        tracker = MemTracker()

        def step() -> None:
            for inputs, targets in micro_batches[:2]:
                tracker.reset_mod_stats()
                net.forward(inputs, targets).backward()
            state.optimizer.step()
            state.average.update(0)
            state.optimizer.zero_grad(set_to_none=views is not True)

        net.forward.train()
        step()  # the second is the first that has the optimizer's state from its start
        tracker.track_external(net.objective, state.optimizer, *leaves(raw), *leaves(batch))
        with tracker:
            step()
        peak = {
            getattr(kind, "name", kind): size
            for kind, size in tracker.get_tracker_snapshot("peak")[device].items()
        }
        weights = peak.get("PARAM", 0) + peak.get("BUFFER", 0)
        gradients, optimizer = peak.get("GRAD", 0), total(leaves([*state.optimizer.state.values()]))
        activations = max(peak["Total"] - weights - gradients - optimizer, 0)
        weights += total(state.average.named().values())
        if views is False:
            gradients += total(trained_parameters(net.model))
        found = dict(zip(PARTS, (weights, gradients, optimizer, activations), strict=False))
        return {**found, "total": sum(found.values())}


@contextmanager
def step_of(job_yaml: str) -> Iterator[Step]:
    """The step of a frozen job on the device that it asks for; the block may use it.

    Raises ConfigError for a strategy whose memory is not counted.
    """
    job = OmegaConf.create(job_yaml)
    assert isinstance(job, DictConfig)
    strategy, amp = build.begin(job)
    shards, processes = strategy.shards, job.parallel.processes
    one = strategy if processes == 1 else Single(job.device)
    with joined_alone(job.device, processes) if shards else one.join() as context:
        if len(context.devices) > 1:
            raise ConfigError(
                "parallel",
                job.choices.parallel,
                "what it copies or sends in a step is not counted",
                "none, ddp and fsdp are allowed",
                TAKE_STEPS,
            )
        if job.compile.mode is not None:
            wrong, allowed = "what a compiler fuses is not counted", "null is allowed"
            raise ConfigError("compile.mode", job.compile.mode, wrong, allowed, TAKE_STEPS)
        at = build.Setup(job, strategy, amp.on(context.device), context)
        data = build.data_of(at, None)
        Batches(HostSource(data.train), job.batch_size, job.seed, data.augment, context)  # it fits
        some = np.arange(min(2, len(data.train)))
        examples = prepared(data.train, data.augment, job.seed, some)
        network, fake = network_of(at, data.layout), FakeTensorMode(allow_non_fake_inputs=True)
        make_fake(network.objective, fake, context.device)
        if shards:
            network = replace(network, forward=strategy.wrap(network.objective, context))
        yield Step(at, fake, network, read(data.train, some), examples)


@contextmanager
def joined_alone(device: str, processes: int) -> Iterator[RankContext]:
    """This process as the first of several that are not there: nothing is sent or awaited."""
    dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=processes)
    try:
        with Single(device).join() as context:
            yield replace(context, world_size=processes, replicas=processes)
    finally:
        dist.destroy_process_group()


def network_of(at: build.Setup, layout: str) -> build.Network:
    """The network as it is built for training, on the CPU. layout: the name of a memory format."""
    model = build.network(at.job).to(memory_format=getattr(torch, layout))
    freeze(model, at.job.freeze)
    at.amp.cast(model)
    computed = at.amp.wrap(build.predicting(at.job, kept_frozen(model, at.job.freeze)))
    objective = Objective(computed, build.built_task(at.job))
    return build.Network(model, objective, objective, None, [], [])


def make_fake(module: nn.Module, fake: FakeTensorMode, device: torch.device) -> None:
    """Replace parameters and buffers by such without values, on the device."""
    made: dict[Tensor, Tensor] = {}  # weights may be tied
    for owner in module.modules():
        for tensors in (owner._parameters, owner._buffers):
            for name, tensor in tensors.items():
                if tensor is not None and tensor not in made:
                    with fake:
                        moved = tensor.detach().to(device)
                    trained = isinstance(tensor, nn.Parameter)
                    made[tensor] = nn.Parameter(moved, tensor.requires_grad) if trained else moved
                if tensor is not None:
                    tensors[name] = made[tensor]  # type: ignore[assignment]


def like(leaf: Any, rows: int, device: torch.device) -> Tensor:
    """A batch of so many examples as `leaf` has them, without values."""
    if not isinstance(leaf, Tensor):
        wrong = "what its batches hold is not known without values"
        allowed = "a dataset without text and a collate_fn is counted"
        raise ConfigError("dataset", leaf.dtype, wrong, allowed, TAKE_STEPS)
    layout = suggest_memory_format(leaf)
    size = (rows, *leaf.shape[1:])
    return torch.empty(size, dtype=leaf.dtype, device=device, memory_format=layout)


def total(tensors: Iterable[Any]) -> int:
    """The bytes of the tensors among these, or of this process's part of each."""
    return sum(local_part(each).nbytes for each in tensors if isinstance(each, Tensor))
