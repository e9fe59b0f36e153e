"""The one place where configuration becomes objects."""

from __future__ import annotations

import math
import os
import random
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from hydra.errors import InstantiationException
from hydra.utils import instantiate
from omegaconf import DictConfig, OmegaConf
from torch import nn
from torch.optim.lr_scheduler import ReduceLROnPlateau

from ninefold.amp import Amp, verify
from ninefold.checkpoint.store import Checkpoints, read
from ninefold.checkpoint.writer import Saver
from ninefold.config import rules
from ninefold.config.untrusted import CONF, EVALUATED
from ninefold.dataset import Dataset, Examples, train_and_val
from ninefold.dataset.batches import Batches, shard
from ninefold.dataset.preparation import ImagePreparation, Preparation
from ninefold.errors import CheckpointError, ConfigError, Failure, memory_failure
from ninefold.logger import Logger, Run
from ninefold.measure.clock import Clock
from ninefold.measure.devices import meter
from ninefold.measure.numerics import Numerics
from ninefold.measure.probe import Probe
from ninefold.measure.profiler import Profile
from ninefold.model import Output, check
from ninefold.parallel import Parallel, Place
from ninefold.signals import Stop
from ninefold.task import Objective, Task
from ninefold.train import allocator
from ninefold.train.average import Average
from ninefold.train.compiled import GRAPHS_FROM, Compiled, require_one_copy
from ninefold.train.state import State
from ninefold.train.training import Training
from ninefold.train.watch import Watch

ASSUMED = {"amp": "fp32", "task": "classification"}


def make(node: DictConfig, name: str, **given: Any) -> Any:
    """The object that `node` describes. Raises ConfigError if its target does not take it."""
    try:
        return instantiate(node, _convert_="all", **given)
    except InstantiationException as error:
        cause = error.__cause__ or error
        if isinstance(cause, Failure):
            raise cause from error
        if exhausted := memory_failure(cause, f"{name} was being built"):
            raise exhausted from error
        raise ConfigError(
            name, node.get("_target_"), "it cannot be built so", str(cause),
            f"see the keys in conf/{name.partition('.')[0]}/",
        ) from error  # fmt: skip


def network(job: DictConfig, place: Place) -> nn.Module:
    """The plain model, on the device and in its memory format, drawn from the job's seed."""
    torch.manual_seed(job.seed)  # the same weights on every process
    model: nn.Module = make(job.model.net, "model.net")
    layout = getattr(torch, job.model.memory_format)
    return model.to(place.device, memory_format=layout)  # type: ignore[call-overload, no-any-return]


def weight_bytes(job: DictConfig) -> int | None:
    """How much memory the model will take, without taking it; None where only building can tell.

    Raises ConfigError if there cannot be so large a model.
    """
    try:
        with torch.device("meta"):
            model: nn.Module = make(job.model.net, "model.net")
        size: int = sum(t.numel() * t.element_size() for t in model.state_dict().values())
        return size
    except ConfigError as error:
        if "meta" in str(error):  # a constructor that computes with its weights
            return None
        raise


def preparation(job: DictConfig, dataset: Dataset, augment: bool) -> Preparation:
    """How bytes of `dataset` become the model's input; augmented or as they are.

    Raises ConfigError if they cannot.
    """
    if not rules.fits(dataset.shape[0], job.model.input_channels):
        raise rules.misfit(dataset.shape[0], job.model.input_channels)
    kind: Callable[..., Preparation] = getattr(dataset, "preparation", ImagePreparation)
    return kind(
        channels=job.model.input_channels,
        size=job.model.input_size,
        mean=dataset.mean,
        std=dataset.std,
        flip=augment and dataset.flip,
        crop=dataset.crop if augment else 0,
        memory_format=getattr(torch, job.model.memory_format),
    )


def training(
    job: DictConfig,
    text: str,
    folder: Path,
    parallel: Parallel,
    amp: Amp,
    place: Place,
    stop: Stop,
    resume: bool,
) -> Training:
    """Everything that `job` asks for; `text` is its frozen form, `amp` its settled precision."""
    mode = job.compile.mode
    if mode is not None:
        require_one_copy(mode, place)
    dataset: Dataset = make(job.dataset, "dataset")
    (train, val), test = train_and_val(dataset, job.seed), dataset.load("test")
    prepare, plain = (preparation(job, dataset, augment) for augment in (True, False))
    workers = OmegaConf.select(job, "loader.workers", default=0)  # older runs have no such key
    batches = Batches(train, job.batch_size, job.seed, prepare, place, workers)

    model = network(job, place)
    task = checked_task(job, model, train, plain, place)
    optimizer: torch.optim.Optimizer = make(job.optimizer, "optimizer")(model.parameters())
    start_momentum(optimizer)
    scheduler = make(job.scheduler, "scheduler")(optimizer)
    verify(amp, amp.grad_scaler(place.device), place.device)
    skip = job.on_nonfinite == "skip"
    scaler = amp.grad_scaler(place.device, skip)
    watch = Watch(optimizer, scaler, place.device, skip)
    state = State(model, optimizer, scheduler, scaler, Average(model, job.ema), watch)
    network_in_dtype = amp.wrap(predicting(job, model))
    if mode is not None:
        network_in_dtype = Compiled(network_in_dtype, mode)
    objective = Objective(network_in_dtype, task)
    forward = parallel.wrap(objective, place)
    seed_generators(job.seed * 1_000_003 + place.rank)  # each process's own dropout

    checkpoints = Checkpoints(folder / "checkpoints", job.checkpoint.keep)
    if resume:
        restore(state, checkpoints, place)
    clock = Clock(place.device, job.clock.sample, meter(place, first_on_host()))
    clock.seconds = state.train_seconds
    if resume:
        clock.joules = math.nan  # those of the part before are not known
    last_step = batches.steps_per_epoch * job.epochs
    if job.max_steps is not None:
        last_step = min(last_step, job.max_steps)
    return Training(
        state=state,
        forward=forward,
        objective=objective,
        batches=batches,
        val=val,
        test=test,
        prepare=plain,
        parallel=parallel,
        place=place,
        stop=stop,
        end_of_epoch=_end_of_epoch(scheduler),
        loggers=_loggers(job, folder, state, last_step) if place.rank == 0 else [],
        clock=clock,
        saver=Saver(checkpoints, place.device),
        batch_size=job.batch_size,
        accumulate=job.accumulate,
        last_step=last_step,
        patience=job.patience,
        log_every=job.log_every,
        checkpoint_every=job.checkpoint.every,
        save_or_stop=job.checkpoint.on_error == "stop",
        warmup_steps=job.clock.warmup if mode is None else max(job.clock.warmup, GRAPHS_FROM),
        compiles=mode is not None,
        profile=Profile(folder / "profile", place) if job.profile else None,
        workers=workers,
        config=text,
        # older runs have no such keys
        probe=Probe(OmegaConf.select(job, "clock.probe", default=0), parallel, place),
        numerics=Numerics(k, folder) if (k := OmegaConf.select(job, "numerics")) else None,
        ceiling_steps=OmegaConf.select(job, "clock.ceiling", default=0),
    )


def predicting(job: DictConfig, model: nn.Module) -> nn.Module:
    """`model`, or a module that returns the part of its output that `model.output` names."""
    part = job.model.get("output")
    return model if part is None else Output(model, part)


def checked_task(
    job: DictConfig, model: nn.Module, examples: Examples, prepare: Preparation, place: Place
) -> Task:
    """The job's task. Raises ConfigError if model, task and examples do not fit together."""
    task: Task = make(job.task, "task")
    alone = Place(0, 1, place.device)
    inputs, targets = next(shard(examples.first(1), 1, prepare, alone))
    check(model, job.model.get("output"), task.loss, inputs, targets, job.choices.model)
    return task


def seed_generators(seed: int) -> None:
    """Start every generator that training may draw from at `seed`."""
    random.seed(seed)
    np.random.seed(seed % 2**32)
    torch.manual_seed(seed)


def start_momentum(optimizer: torch.optim.Optimizer) -> None:
    """Let the momentum of a fused SGD begin at zero, from which its first step is the same.

    It would begin in memory as it is found, and a first step that is skipped leaves it so.
    """
    for group in optimizer.param_groups if isinstance(optimizer, torch.optim.SGD) else []:
        # With dampening the first step is another than those that follow.
        if group["fused"] and group["momentum"] and not group["dampening"]:
            for parameter in group["params"]:
                optimizer.state[parameter]["momentum_buffer"] = torch.zeros_like(parameter)


def restore(state: State, checkpoints: Checkpoints, place: Place) -> None:
    """Put `state` where the newest checkpoint that verifies left off.

    Raises CheckpointError if there is none, or it is of another model or optimizer.
    """
    path = checkpoints.newest(tell=place.rank == 0)
    content = read(path, "resume")
    try:
        state.restore(content, place)
    except (KeyError, ValueError, RuntimeError) as error:
        if memory_failure(error, "a run was being resumed"):
            raise
        raise CheckpointError(
            "resume", path, "it does not fit this run", str(error).splitlines()[0],
            "resume with the configuration that wrote it",
        ) from error  # fmt: skip


def _end_of_epoch(scheduler: Any) -> Callable[[float], None]:
    """Torch's schedulers differ in whether `step` takes the loss; ours all do."""
    if isinstance(scheduler, ReduceLROnPlateau):
        return lambda loss: scheduler.step(loss)
    return lambda loss: scheduler.step()


def _loggers(job: DictConfig, folder: Path, state: State, steps: int) -> list[Logger]:
    settings = flat(OmegaConf.to_container(job))
    run = Run(folder, state.step, state.measured, steps, job.batch_size, settings)
    return [make(node, f"logger.{name}", _partial_=True)(run) for name, node in job.logger.items()]


def flat(tree: Any, prefix: str = "") -> dict[str, Any]:
    """A nested mapping as one of dotted keys; environment references stay as written."""
    if not isinstance(tree, Mapping):
        return {prefix: tree}
    items = (flat(v, f"{prefix}.{k}" if prefix else str(k)) for k, v in tree.items())
    return {key: value for item in items for key, value in item.items()}


def examples_and_preparation(job: DictConfig) -> tuple[Examples, Preparation]:
    """The test split of the job's dataset, and how it becomes the model's input."""
    dataset: Dataset = make(job.dataset, "dataset")
    return dataset.load("test"), preparation(job, dataset, augment=False)


def overlay(job: DictConfig, wanted: DictConfig, path: Path) -> DictConfig:
    """The checkpoint's own `job` with what the evaluation asks for put over it.

    A bare state_dict says nothing of its precision or task: fp32 and classification are assumed.
    Raises ConfigError where neither says which model or dataset.
    """
    merged = OmegaConf.create({"choices": dict(job.get("choices") or {}), "seed": 0})
    for group in EVALUATED:
        merged[group] = job.get(group)
        if wanted.get(group) is not None:
            merged[group] = wanted[group]
            merged.choices[group] = wanted.choices[group]
        elif merged[group] is None and group in ASSUMED:
            merged[group] = OmegaConf.load(CONF / group / f"{ASSUMED[group]}.yaml")
            merged.choices[group] = ASSUMED[group]
        if merged[group] is None:
            raise ConfigError(
                group, "null", f"{path} does not say which {group} it is for",
                f"found {sorted(set(job) - {'choices'}) or 'no configuration in it'}",
                f"name one: {group}=...",
            )  # fmt: skip
    for key in ("batch_size", "threads", "device", "loader", "launch"):
        merged[key] = wanted[key]
    return merged


def begin(job: DictConfig) -> tuple[Parallel, Amp]:
    """Share out the CPU threads, settle memory and precision, and build both axes."""
    allocator.keep_freed()
    torch.set_num_threads(thread_share(job.threads))
    parallel: Parallel = make(job.parallel, "parallel")
    amp: Amp = make(job.amp, "amp")
    amp.pin()
    deterministic = bool(job.get("deterministic"))
    if deterministic:
        os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")  # what cuBLAS asks for
    torch.use_deterministic_algorithms(deterministic)
    return parallel, amp


def thread_share(total: int) -> int:
    """This process's part of a host's `total` threads, at least one; the first get the rest."""
    each, rest = divmod(total, local_world_size())
    return max(1, each + (int(os.environ.get("LOCAL_RANK", "0")) < rest))


def first_on_host() -> bool:
    """Whether this process is the first of this run on its host."""
    return os.environ.get("LOCAL_RANK", "0") == "0"


def local_world_size() -> int:
    """Processes of this run on this host."""
    return int(os.environ.get("LOCAL_WORLD_SIZE", "1"))
