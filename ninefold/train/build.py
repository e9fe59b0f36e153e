"""Builds the objects that a configuration describes, here and nowhere else."""

from __future__ import annotations

import math
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from inspect import Parameter, signature
from pathlib import Path
from typing import Any

import numpy as np
import torch
from hydra.errors import InstantiationException
from hydra.utils import get_object, instantiate
from omegaconf import DictConfig, OmegaConf, open_dict
from torch import nn

from ninefold.checkpoint.store import Checkpoints
from ninefold.checkpoint.writer import AsyncWriter
from ninefold.config import combinations
from ninefold.dataset import Dataset, Examples, Split, as_dataset, train_and_val
from ninefold.dataset.arrays import ArraySpec, Selected, specs
from ninefold.dataset.augmentation import Mixup
from ninefold.dataset.cache import notes_of, reader
from ninefold.dataset.plan import LoaderPlan, plan, processes_ahead
from ninefold.engine.amp import Amp, verify
from ninefold.engine.average import Average
from ninefold.engine.batches import Batches, Preparation, evaluation_batch
from ninefold.engine.clip import Clip, NoClip
from ninefold.engine.clock import Clock
from ninefold.engine.generators import seed_generators
from ninefold.engine.loss_tracker import LossTracker
from ninefold.engine.parallel import Parallel, RankContext
from ninefold.engine.schedule import Schedule
from ninefold.engine.state import State
from ninefold.engine.task import Objective, Task, scoring
from ninefold.engine.training import PeakMemory
from ninefold.errors import ConfigError, Failure, construction_error, memory_failure, one_line
from ninefold.files import flat
from ninefold.logger import Logger, Run
from ninefold.machine import cores
from ninefold.measure.devices import Load
from ninefold.measure.numerics import Numerics
from ninefold.measure.profiler import Profile
from ninefold.model import Output
from ninefold.places import option_files
from ninefold.result import OWN_AUTOCAST, option_name
from ninefold.score import Counted, Score
from ninefold.secrets import redact
from ninefold.signals import Stop
from ninefold.train import initial
from ninefold.train.freeze import freeze, kept_frozen
from ninefold.train.initial import restore
from ninefold.train.kernels import (
    CONTIGUOUS,
    GRAPHS_FROM,
    Compiled,
    choose_kernels,
    give_back_freed,
    keep_freed,
    memory_format,
    require_one_device,
)
from ninefold.train.optimizer import (
    UNFUSED,
    fits_fused,
    name_parameters,
    needs_closure,
    parameter_groups,
    require_options,
    start_momentum,
    trained_parameters,
)
from ninefold.train.training_run import TrainingRun
from ninefold.train.trial import Trial
from ninefold.train.warmup import WarmUp
from ninefold.tree import leaves

ABSENT = object()  # the value of a key that a job lacks


def make(node: DictConfig | dict[str, Any], name: str, *first: Any, **given: Any) -> Any:
    """The object that `node` describes. Raises ConfigError if it cannot be built.

    name: of the node, for the error. first, given: arguments besides those in `node`.
    """
    try:
        return instantiate(node, *first, _convert_="all", **given)
    except InstantiationException as error:
        cause = error.__cause__ or error
        if isinstance(cause, Failure):
            raise cause from error
        if exhausted := memory_failure(cause, f"{name} was being built"):
            raise exhausted from error
        raise construction_error(
            name, node.get("_target_"), error, name.partition(".")[0]
        ) from error


def built_dataset(
    job: DictConfig, context: RankContext, cache: Mapping[str, str] | None, *splits: Split
) -> Dataset:
    """The job's dataset, with the workers that read `splits`, all if none is named.

    cache: its files, which threads read; None without.
    """
    dataset, count = as_dataset(make(job.dataset, "dataset")), job.loader.workers
    if count == "auto":
        count = processes_ahead(context, cores())
    if count and cache is None:
        dataset.start_workers(count, splits or dataset.splits, job.launch.timeout)
    return dataset


def network(job: DictConfig) -> nn.Module:
    """The plain model, on the CPU, drawn from the job's seed."""
    seed_generators(job.seed)  # the same network on every process
    return built_network(job)


def built_network(job: DictConfig) -> nn.Module:
    """The job's model, with weights drawn from torch's generator: none are fetched.

    Raises ConfigError, also if it is no network, or one whose state is more than tensors.
    """
    node = initial.without_fetching(_without_defaults_of_another(job, containers(job.model.net)))
    model = make(node, "model.net")
    if not isinstance(model, nn.Module):
        wrong = f"it returns an object of type {type(model).__name__}"
        allowed = "a torch.nn.Module is needed"
        raise ConfigError("model.net", node["_target_"], wrong, allowed, "return the network")
    for name, value in model.state_dict().items():
        if not isinstance(value, torch.Tensor):
            wrong = f"the state of the network has a {type(value).__name__}, {name}"
            do = "return a tensor from get_extra_state"
            raise ConfigError("model.net", node["_target_"], wrong, "checkpoints hold tensors", do)
    return model


def _without_defaults_of_another(job: DictConfig, node: dict[str, Any]) -> dict[str, Any]:
    """`model.net` without the arguments of the option's own network that another does not take.

    So `model.net._target_=mine.Net` suffices. What a command sets to another value is passed on.
    """
    for path in option_files("model", str(job.get("choices", {}).get("model"))):
        option: Any = OmegaConf.load(path)
        own = option.get("net") or {}
        if own.get("_target_") == node["_target_"]:
            continue
        try:
            taken = signature(get_object(node["_target_"])).parameters
        except Exception:  # it cannot be imported, or is written in C: building it tells
            continue
        if any(each.kind == Parameter.VAR_KEYWORD for each in taken.values()):
            continue
        defaults = containers(OmegaConf.merge(job, {"model": {"net": own}}).model.net)
        node = {
            key: value
            for key, value in node.items()
            if key.startswith("_") or key in taken or defaults.get(key, ...) != value
        }
    return node


def containers(node: DictConfig) -> dict[str, Any]:
    """`node` as plain containers, without references."""
    tree: Any = OmegaConf.to_container(node, resolve=True)
    return {str(key): value for key, value in tree.items()}


def weight_bytes(job: DictConfig) -> int | None:
    """Bytes of the model's tensors, without allocating them; None if only building it can tell.

    Raises ConfigError if the model cannot be built at all.
    """
    try:
        with torch.device("meta"), warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of each weight that a constructor loads in vain
            model = built_network(job)
        size: int = sum(t.numel() * t.element_size() for t in model.state_dict().values())
        return size
    except ConfigError as error:
        if "meta" in str(error):  # a constructor that computes with its weights
            return None
        raise


def wanted_format(job: DictConfig) -> str:
    """The key model.memory_format; a model that has none computes as PyTorch does by itself."""
    wanted: str = job.model.get("memory_format", CONTIGUOUS)
    return wanted


def preparation(job: DictConfig, dataset: Dataset, augment: bool, layout: str) -> Preparation:
    """Return what turns the bytes of `dataset` into the model's input.

    augment: as training does, by the dataset's augmentation and augment.mixup.
    layout: the name of its memory format.
    Raises ConfigError if the number of channels does not fit.
    """
    channels, size = (job.model.get(f"input_{key}") for key in ("channels", "size"))
    shape = dataset.shape if isinstance(dataset.shape, dict) else [*dataset.shape]
    wanted = {"input_channels": channels}
    for failure in combinations.problems({"dataset": {"shape": shape}, "model": wanted}):
        raise failure
    prepare = dataset.preparation(
        channels=channels if isinstance(specs(shape), ArraySpec) else None,
        size=size,
        mean=dataset.mean,
        std=dataset.std,
        flip=augment and dataset.flip,
        crop=dataset.crop if augment else 0,
        memory_format=getattr(torch, layout),
    )
    if not (augment and job.augment.mixup):
        return prepare
    return Mixup(prepare, job.augment.mixup, job.task.get("classes"))


@contextmanager
def running(
    job_yaml: str, folder: Path, stop: Stop, changes: Mapping[str, Any] | None = None, **how: Any
) -> Iterator[TrainingRun]:
    """The run of a frozen job; in the block this process is one of its processes.

    job_yaml, how: see `training`. changes: values of keys that the job has, by dotted name.
    """
    job = OmegaConf.create(job_yaml)
    assert isinstance(job, DictConfig)
    for key, value in (changes or {}).items():
        if OmegaConf.select(job, key, default=ABSENT) is not ABSENT:
            OmegaConf.update(job, key, value, merge=False)
    parallel, amp = begin(job)
    with parallel.join() as context:
        torch.set_num_threads(context.share_of(job.threads))
        amp = amp.on(context.device)
        yield training(Setup(job, parallel, amp, context), job_yaml, folder, stop, **how)


@dataclass(frozen=True)
class Setup:
    """What all parts of a run are built by. amp: settled on the device of `context`."""

    job: DictConfig
    parallel: Parallel
    amp: Amp
    context: RankContext


@dataclass(frozen=True)
class Data:
    """What a run reads, and what turns it into the network's input, in training and elsewhere."""

    dataset: Dataset
    train: Examples
    val: Examples | None
    test: Examples
    augment: Preparation
    prepare: Preparation
    layout: str
    evaluation_batch: int
    loading: LoaderPlan


@dataclass(frozen=True)
class Network:
    """The network with its first weights, and what computes its loss.

    forward: the objective, wrapped by the strategy, which may replace the parameters.
    mean_loss: see TrainingRun. origin: about the weights. notes: about which are trained.
    """

    model: nn.Module
    objective: Objective
    forward: nn.Module
    mean_loss: bool | None
    origin: list[str]
    notes: list[str]


def training(
    at: Setup,
    job_yaml: str,
    folder: Path,
    stop: Stop,
    *,
    resume: bool = False,
    cache: Mapping[str, str] | None = None,
    evaluates: bool = True,
) -> TrainingRun:
    """The run that a job describes, of parts that each need those before them.

    job_yaml: its frozen form. resume: continue from its checkpoint. cache: where decoded examples
    are, see RunSpec. evaluates: whether an evaluation is tried, too.
    """
    job, parallel, amp, context = at.job, at.parallel, at.amp, at.context
    compiles = job.compile.mode is not None
    if compiles:
        require_one_device(job.compile.mode, context)
    data = data_of(at, cache)
    source = partial(data.loading.source, device=context.device)
    batches = Batches(source(data.train), job.batch_size, job.seed, data.augment, context)
    net = network_of(at, data, resume, evaluates)
    checkpoints = Checkpoints(folder / "checkpoints", job.checkpoint.keep)
    state = state_of(at, net, batches.steps_per_epoch)
    state.examples = [len(each or ()) for each in (data.train, data.val, data.test)]
    state.names = class_names(job, data.train)
    state.where = {
        "parallel": str(job.choices.parallel),
        "processes": context.world_size,
        "device": context.device.type,
        "amp.dtype": amp.dtype,
        "torch": str(torch.__version__),
    }
    if resume:
        restore(state, checkpoints, job_yaml, parallel, context)
    load = Load(context.gpus)
    clock = Clock(context.device, job.clock.sample, context.gpus, observers=[load])
    clock.seconds = state.train_seconds
    limits = job.clip_grad_norm, job.clip_grad_value
    last_step = batches.steps_per_epoch * job.epochs
    if job.max_steps is not None:
        last_step = min(last_step, job.max_steps)
    if state.step > last_step:
        key = "epochs" if job.max_steps != last_step else "max_steps"
        wrong = f"the run is at step {state.step} already"
        do = "ask for more, or leave resume out"
        raise ConfigError(key, job[key], wrong, f"it has {last_step} steps so", do)
    task, counted = net.objective.task, counted_in(data, net.objective.task)
    loggers, notes = list[Logger](), [*state.origin, *net.notes]
    if context.rank == 0:
        loggers = _loggers(job, folder, state, last_step, scoring(task), counted)
        notes += notes_of(data.dataset, cache)
    undone = max(GRAPHS_FROM if compiles else 0, parallel.first_steps(context) if state.step else 0)
    return TrainingRun(
        job=job,
        amp=amp,
        state=state,
        forward=net.forward,
        objective=net.objective,
        batches=batches,
        val=None if data.val is None else source(data.val),
        test=source(data.test),
        prepare=data.prepare,
        parallel=parallel,
        context=context,
        clock=clock,
        memory=PeakMemory(context.gpus),
        batch_size=job.batch_size,
        evaluation_batch=data.evaluation_batch,
        accumulate=job.accumulate,
        last_step=last_step,
        patience=job.patience,
        clip=NoClip()
        if limits == (None, None)
        else Clip(*limits, net.model, state.optimizer, state.scaler),
        stop=stop,
        loggers=loggers,
        log_every=job.log_every,
        writer=parallel.writer(checkpoints) or AsyncWriter(checkpoints, context.device),
        checkpoint_every=job.checkpoint.every,
        job_yaml=job_yaml,
        warmup=WarmUp(
            steps=max(job.clock.warmup, undone),
            compiles=compiles,
            numerics=Numerics(job.numerics, folder) if job.numerics else None,
            profile=Profile(folder / "profile", context) if job.profile else None,
        ),
        load=load,
        layout=data.layout,
        loading=data.loading,
        random_inputs=data.dataset.random_inputs,
        mean_loss=net.mean_loss,
        counted=counted,
        notes=notes,
    )


def data_of(at: Setup, cache: Mapping[str, str] | None) -> Data:
    """Read the job's data, and plan how. Every process must call it."""
    job, device = at.job, at.context.device
    dataset = built_dataset(job, at.context, cache)
    layout = memory_format(wanted_format(job), dataset.shape, at.amp, device, at.parallel.shards)
    read = reader(dataset, cache)
    (train, val), test = train_and_val(dataset, job.seed, read), read("test")
    augment, prepare = (preparation(job, dataset, each, layout) for each in (True, False))
    sets = [train, test, *([] if val is None else [val])]
    values = image_values(job, dataset.shape)
    largest = evaluation_batch(job.batch_size, job.accumulate, values, at.context)
    how = loader_plan(job, dataset, sets, largest, at.parallel, at.context)
    return Data(dataset, train, val, test, augment, prepare, layout, largest, how)


def network_of(at: Setup, data: Data, resume: bool, evaluates: bool) -> Network:
    """Build the job's network, try copies of it, and wrap it. Every process must call it."""
    job, parallel, context = at.job, at.parallel, at.context
    model = network(job).to(memory_format=getattr(torch, data.layout))
    origin = [] if resume else initial.load(model, containers(job), parallel, context)
    notes = freeze(model, job.freeze)
    task, trained, train = built_task(job), kept_frozen(model, job.freeze), data.train
    trial = trial_of(job, trained, task, context)
    differentiates = evaluates and trial.evaluation(data.test, data.prepare)
    whole = train.targets
    while isinstance(whole, Selected):  # as with dataset.val
        whole = whole.array
    if isinstance(whole, np.ndarray) and hasattr(task, "require_targets"):
        task.require_targets(train.targets[np.arange(len(train.targets))])
    unused = trial.step(train, data.augment, job.seed, job.batch_size, job.accumulate)
    if trained is not model:  # it is in PartlyFrozen
        unused = [name.removeprefix("network.") for name in unused]
    parallel.require_used(unused)
    notes += [OWN_AUTOCAST] if trial.in_autocast else []
    mean_loss = None
    if context.replicas * job.accumulate > 1 and context.rank == 0:
        mean_loss = trial.has_mean_loss(train, data.augment, job.seed)
    del trial  # its copies are as large as the network
    at.amp.cast(model)
    computed = at.amp.wrap(predicting(job, trained))
    if job.compile.mode is not None:
        computed = Compiled(computed, job.compile.mode)
    objective = Objective(computed, task, differentiates)
    forward = parallel.wrap(objective, context)
    verify(at.amp, at.amp.grad_scaler(context.device), context.device)
    if job.optimizer.get("fused") and not fits_fused(model):
        notes.append(UNFUSED)
    return Network(model, objective, forward, mean_loss, origin, notes)


def image_values(job: DictConfig, shape: Any) -> int | None:
    """Count the values of an example as the network takes it; None where not all are of images or
    volumes. shape: dataset.shape.
    """
    channels, size = (job.model.get(f"input_{key}") for key in ("channels", "size"))
    spec = specs(shape)
    shapes = [one.shape for one in leaves(spec)]
    if any(len(one) not in (3, 4) for one in shapes):
        return None
    if isinstance(spec, ArraySpec):  # a tuple of one is not converted
        own, *inner = spec.shape
        shapes = [(channels or own, *(inner if size is None else [size, size]))]
    values: int = sum(map(math.prod, shapes))
    return values


def loader_plan(
    job: DictConfig,
    dataset: Dataset,
    sets: Sequence[Examples],
    evaluated: int,
    parallel: Parallel,
    context: RankContext,
) -> LoaderPlan:
    """Plan how batches of `sets` are read, see `plan`, and end workers that are to read none."""
    resident = job.dataset.get("resident", "auto")
    how = plan(job.loader, resident, sets, job.batch_size, evaluated, parallel, context)
    if not how.workers:
        dataset.stop_workers()
    return how


def predicting(job: DictConfig, model: nn.Module) -> nn.Module:
    """`model`, or a module that returns the part of its output that `model.output` names."""
    part = job.model.get("output")
    return model if part is None else Output(model, part)


def model_name(job: DictConfig) -> str:
    return str(option_name("model", job.choices, job))


def trial_of(job: DictConfig, network: nn.Module, task: Task, context: RankContext) -> Trial:
    part, name, option = job.model.get("output"), model_name(job), job.choices.task
    return Trial(network, part, name, task, option, own_loss(job), context)


def class_names(job: DictConfig, examples: Examples) -> list[str]:
    """The dataset's names of the classes, printable and short; empty if it has none."""
    given = job.dataset.get("class_names") or examples.names
    return [redact(one_line(str(name)))[:64] for name in given or ()]


def built_task(job: DictConfig) -> Task:
    """The job's task. Raises ConfigError."""
    options, target = job.task.copy(), own_loss(job)
    own = options.get("loss")
    with open_dict(options):
        if own is None or target is not None:  # a task need not have this argument
            options.pop("loss", None)
        if not options.get("label_smoothing"):  # nor this one
            options.pop("label_smoothing", None)
    if target is None:
        task: Task = make(options, "task")
    else:
        loss = make(own, "task.loss")
        try:
            task = make(options, "task", _partial_=True)(loss=loss)
        except TypeError as error:
            wrong, do = "the task takes none", "choose another task, or leave task.loss out"
            raise ConfigError("task.loss", target, wrong, str(error), do) from error
    scoring(task)
    return task


def own_loss(job: DictConfig) -> str | None:
    """The target of the user's own loss."""
    own = job.task.get("loss")
    return str(own.get("_target_")) if isinstance(own, DictConfig) else None


def state_of(at: Setup, net: Network, per_epoch: int) -> State:
    """The state of the run before its first step, with this process's own draws of dropout.

    per_epoch: optimizer steps in an epoch. Every process must call it.
    """
    job, amp, context, model = at.job, at.amp, at.context, net.model
    options, scheduling = job.optimizer.copy(), job.scheduler.copy()
    with open_dict(options), open_dict(scheduling):  # an option need not have these keys
        groups = options.pop("groups", None)
        per, warmup = scheduling.pop("per", "epoch"), scheduling.pop("warmup", 0)
    if per == "step" and "T_max" in scheduling:  # it counts epochs in conf/
        scheduling.T_max = max(1, scheduling.T_max * per_epoch - warmup)
    own: Any = None if groups is None else OmegaConf.to_container(groups, resolve=True)
    parameters: Sequence[Any]
    parameters = trained_parameters(model) if own is None else parameter_groups(model, own)
    if options.get("fused") and not fits_fused(model):
        options.fused = False  # UNFUSED says so
    optimizer = make(options, "optimizer", parameters, _partial_=False)
    if not isinstance(optimizer, torch.optim.Optimizer):
        name = option_name("optimizer", job.choices, job)
        wrong = f"it returns an object of type {type(optimizer).__name__}"
        allowed = "a torch.optim.Optimizer is needed"
        do = "return one, or time a step of several with ninefold.time_steps"
        raise ConfigError("optimizer", name, wrong, allowed, do)
    if needs_closure(optimizer):
        wrong = "its step needs a closure, which computes the loss again"
        allowed = "one step for each batch is taken"
        do = "choose another, or time your own loop with ninefold.time_steps or ninefold bench"
        raise ConfigError("optimizer", type(optimizer).__name__, wrong, allowed, do)
    name_parameters(optimizer, model)
    require_options(own, optimizer)
    start_momentum(optimizer)
    scheduler = make(scheduling, "scheduler", optimizer, _partial_=False)
    skip = job.on_nonfinite == "skip"
    scaler = amp.grad_scaler(context.device, skip)
    state = State(
        model,
        optimizer,
        Schedule(scheduler, optimizer, per, warmup),
        scaler,
        Average(model, job.ema, job.ema_warmup),
        LossTracker(optimizer, scaler, context.device, skip),
        net.objective.task,
        origin=net.origin,
    )
    seed_generators(job.seed * 1_000_003 + context.rank, context.gpus)
    return state


def counted_in(data: Data, task: Task) -> Counted:
    """Unit of a throughput: what the task counts by its targets, else the examples."""
    name = getattr(task, "counts", None)
    if not isinstance(name, str):
        return Counted(str(data.dataset.counts))
    return Counted(name, sum(math.prod(one.shape[1:]) for one in leaves(data.train.targets)))


def _loggers(
    job: DictConfig, folder: Path, state: State, steps: int, score: Score, counted: Counted
) -> list[Logger]:
    run = Run(
        folder=folder,
        first_step=state.step,
        measured=state.measured,
        steps=steps,
        batch_size=job.batch_size,
        settings=flat(OmegaConf.to_container(job)),
        score=score.name,
        unit=score.unit,
        better=score.better,
        counted=counted,
    )
    return [make(node, f"logger.{name}", _partial_=True)(run) for name, node in job.logger.items()]


def begin(job: DictConfig) -> tuple[Parallel, Amp]:
    """Set up this process for `job`: malloc and kernels; build its strategy and precision."""
    parallel: Parallel = make(job.parallel, "parallel")
    if parallel.shards:
        give_back_freed()
    else:
        keep_freed()
    amp: Amp = make(job.amp, "amp")
    amp.pin()
    choose_kernels(bool(job.get("deterministic")), bool(job.get("cudnn_benchmark")))
    return parallel, amp
