"""Combinations of options that are refused, as a table: add yours to `REFUSED`, or, of what a
command asks for in place of a run, to `REFUSED_COMMANDS`. What only your own option refuses goes
into a `REFUSED` of its own, in MODULE_keys.py beside its MODULE.

Each value is allowed by itself (that is checked before, see ninefold.config.rules), and nothing
here needs data or devices. A row asks what an option can do, by the keys that its yaml has, and
never which option it is: an option of your own is then treated like one of ours.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ninefold.errors import ConfigError, Failure
from ninefold.machine import numbers_of
from ninefold.types import spelled

GRAPH_MODES = ("reduce-overhead", "max-autotune")  # of torch.compile: they record CUDA graphs
OTHER_MODES = "default and max-autotune-no-cudagraphs are allowed with it"
LAYOUTS = {"channels_last": 3, "channels_last_3d": 4}  # of shapes with so many numbers


class Job(dict[str, Any]):
    """Values of a job by key, such as `seed` and `dataset.shape`; None for one that it lacks."""

    def __missing__(self, key: str) -> None:
        return None


@dataclass(frozen=True)
class Combination:
    """A combination that cannot be honored.

    field: the key that the error line begins with, and its value.
    when: whether a job has the combination.
    wrong, allowed, do: the rest of the line: what is wrong, what is allowed, what to do. A key in
        braces stands for its value, a name of `words` for what its function returns.
    words: functions of the job for these, by name.
    example: the values, by key, of a job that has this combination and no other, for the tests.
    """

    field: str
    when: Callable[[Job], object]
    wrong: str
    allowed: str
    do: str
    words: Mapping[str, Callable[[Job], object]] = dataclasses.field(default_factory=dict)
    example: Mapping[str, Any] = dataclasses.field(default_factory=dict)


def null(job: Job, key: str) -> bool:
    """Whether `key` is there and is null."""
    return key in job and job[key] is None


def channels(job: Job) -> int | None:
    """The number of channels of the images, by dataset.shape; None if that is of something else."""
    shape = job["dataset.shape"]
    return shape[0] if axes(job) in (3, 4) else None


def axes(job: Job) -> int | None:
    """The length of dataset.shape: 3 for images, 4 for volumes; None if it is no such list."""
    shape = job["dataset.shape"]
    if not isinstance(shape, list) or not all(isinstance(side, int) for side in shape):
        return None
    return len(shape)


def wrong_channels(job: Job) -> bool:
    """Whether the network is for other channels than the examples have: gray ones are repeated."""
    found, wanted = channels(job), job["model.input_channels"]
    return isinstance(found, int) and isinstance(wanted, int) and found not in (1, wanted)


def wrong_length(job: Job, key: str) -> bool:
    """Whether the list `key` has neither one number nor one for each channel."""
    numbers, found = job[key], channels(job)
    return isinstance(numbers, list) and found is not None and len(numbers) not in (1, found)


# Rows that are alike.


def _not_in_turns(when: Callable[[Job], object], wrong: str, example: Job) -> Combination:
    return Combination(
        "study.ask",
        lambda job: "time" in (job["study.ask"] or []) and when(job),
        wrong,
        "configurations alternate, in processes that are alive at the same time",
        "leave it out, or set study.ask=[score]",
        example={"study.ask": ["time"], **example},
    )


def _without_init(key: str, value: object) -> Combination:
    return Combination(
        key,
        lambda job: job[key] and null(job, "init"),
        "there is nothing to load, as init=null",
        "a weights file or a run folder is allowed as init",
        f"set init, or leave {key} out",
        example={key: value, "init": None},
    )


def _length_of(key: str) -> Combination:
    return Combination(
        key,
        lambda job: wrong_length(job, key),
        "dataset.shape={dataset.shape} has another number of channels",
        "a number for each channel of dataset.shape, or one for all, is allowed",
        f"correct {key}",
        example={key: [0.1, 0.2], "dataset.shape": [3, 8, 8]},
    )


def _one_of_two_given(key: str, other: str) -> Combination:
    return Combination(
        key,
        lambda job: null(job, key) and isinstance(job[other], list),
        f"{other} is given",
        "both or none are allowed",
        f"set {key}, or {other}=null",
        example={key: None, other: [0.1]},
    )


# Of examples
DDP: dict[str, Any] = {"parallel.max_processes": None, "parallel.devices": None}

REFUSED = (
    # The examples and the network
    Combination(
        "model.input_channels",
        wrong_channels,
        "the images have {channels} channels",
        "{channels} is allowed, or gray images for any model",
        "choose another model or dataset",
        words={"channels": channels},
        example={"dataset.shape": [3, 8, 8], "model.input_channels": 1},
    ),
    _length_of("dataset.mean"),
    _length_of("dataset.std"),
    _one_of_two_given("dataset.mean", "dataset.std"),
    _one_of_two_given("dataset.std", "dataset.mean"),
    Combination(
        "model.memory_format",
        lambda job: (
            axes(job) in (3, 4) and axes(job) != LAYOUTS.get(job["model.memory_format"], axes(job))
        ),
        "dataset.shape={dataset.shape} has no such layout",
        "channels_last is of images and channels_last_3d of volumes",
        "set model.memory_format=auto",
        example={"dataset.shape": [1, 8, 8, 8], "model.memory_format": "channels_last"},
    ),
    # The task
    Combination(
        "task.classes",
        lambda job: (
            null(job, "task.classes") and job["dataset"] and not null(job, "dataset.classes")
        ),
        "dataset.classes is {dataset.classes}",
        "a whole number of at least 1 is allowed",
        "leave task.classes out",
        example={"dataset": {"classes": 10}, "task.classes": None},
    ),
    Combination(
        "task.ignore",
        lambda job: (
            "task.ignore" in job and job["dataset.ignore"] not in (None, job["task.ignore"])
        ),
        "masks have the number {dataset.ignore} where pixels do not count, as "
        "dataset.ignore={dataset.ignore}",
        "the same number is allowed",
        "leave task.ignore out, and set dataset.ignore",
        example={"dataset.ignore": 11, "task.ignore": 0},
    ),
    Combination(
        "augment.mixup",
        lambda job: job["augment.mixup"] and job["task"] and "task.label_smoothing" not in job,
        "the task takes no mixed targets",
        "one with the key label_smoothing does, as task=classification",
        "leave augment.mixup out",
        example={"augment.mixup": 0.2, "task": {"classes": 3}},
    ),
    Combination(
        "task.label_smoothing",
        lambda job: job["task.label_smoothing"] and job["task.loss"] is not None,
        "task.loss names another loss, and this is of the task's own",
        "0 is allowed with it",
        "give label_smoothing to that loss, if it has such an argument",
        example={"task.label_smoothing": 0.1, "task.loss": {"_target_": "a.b"}},
    ),
    # Devices
    Combination(
        "device",
        lambda job: "parallel.devices" in job and ":" in str(job["device"]),
        "this strategy takes several GPUs",
        "auto, cpu and cuda are allowed with it",
        "set parallel.devices=[{gpu}], or parallel=none",
        words={"gpu": lambda job: job["device"].partition(":")[2]},
        example={"device": "cuda:1", **DDP},
    ),
    Combination(
        "parallel.devices",
        lambda job: job["device"] == "cpu" and numbers_of(job["parallel.devices"]),
        "these are GPUs, device is cpu",
        "null is allowed on a CPU",
        "leave one of them out",
        example={"device": "cpu", "parallel.devices": [0]},
    ),
    # CUDA graphs
    Combination(
        "compile.mode",  # wrong gradients, or an error
        lambda job: job["compile.mode"] in GRAPH_MODES and job["accumulate"] not in (None, 1),
        "accumulate={accumulate} adds gradients over micro-batches; a CUDA graph overwrites those "
        "of the previous micro-batch",
        OTHER_MODES,
        "choose one, or accumulate=1",
        example={"compile.mode": "max-autotune", "accumulate": 4},
    ),
    Combination(
        "parallel.static_graph",  # torch: "INTERNAL ASSERT FAILED", issue 143580
        lambda job: job["parallel.static_graph"] and job["accumulate"] not in (None, 1),
        "accumulate={accumulate} begins with a backward pass that sends no gradients",
        "DDP takes none first with a static graph",
        "set parallel.static_graph=false, or accumulate=1",
        example={"parallel.static_graph": True, "accumulate": 2},
    ),
    # Training
    _without_init("init_partial", True),
    _without_init("init_without", ["fc"]),
    Combination(
        "cudnn_benchmark",
        lambda job: job["cudnn_benchmark"] is True and job["deterministic"] is True,
        "deterministic=true is given; the algorithm that is fastest when it is tried need not be "
        "the same each time",
        "one of the two is allowed",
        "leave one of them out",
        example={"cudnn_benchmark": True, "deterministic": True},
    ),
    Combination(
        "scheduler.T_max",
        lambda job: job["scheduler.T_max"] == 0 and job["epochs"],
        "the cosine has no end with epochs={epochs}",
        "a whole number of at least 1 is allowed, epochs by default",
        "leave it out",
        example={"scheduler.T_max": 0, "epochs": 3},
    ),
    Combination(
        "clip_grad_value",
        lambda job: None not in (job["clip_grad_value"], job["clip_grad_norm"]),
        "clip_grad_norm is given",
        "one of the two is allowed",
        "set one of them to null",
        example={"clip_grad_norm": 1, "clip_grad_value": 0.5},
    ),
    Combination(
        "amp.weights",
        lambda job: (
            job["amp.weights"] == "bfloat16"
            and (job["amp.dtype"] != "bfloat16" or job["amp.scaler"] or job["ema"] is not None)
        ),
        "amp.dtype={amp.dtype}, amp.scaler={amp.scaler} and ema={ema} are given",
        "bfloat16 weights are computed with in bfloat16, and neither scaled nor averaged",
        "use amp=bf16_weights with ema=null, or amp=bf16",
        example={"amp.weights": "bfloat16", "amp.dtype": "auto", "amp.scaler": False, "ema": None},
    ),
    Combination(
        "on_nonfinite",  # torch has no kernel on CUDA that looks for such numbers in bfloat16
        lambda job: job["on_nonfinite"] == "skip" and job["amp.weights"] == "bfloat16",
        "amp.weights=bfloat16 has gradients that no GradScaler checks on a GPU",
        "stop is allowed with it",
        "leave it out, or use amp=bf16",
        example={
            "on_nonfinite": "skip",
            "amp": {"weights": "bfloat16", "dtype": "bfloat16"},
            "ema": None,
        },
    ),
    Combination(
        "ema_warmup",
        lambda job: job["ema_warmup"] and null(job, "ema"),
        "there is no average to warm up, as ema=null",
        "a decay such as ema=0.999 is allowed with it",
        "set ema, or leave ema_warmup out",
        example={"ema_warmup": True, "ema": None},
    ),
)


# These rows also see hydra.mode, hydra/launcher and started_by (torchrun, srun or null).
REFUSED_COMMANDS = (
    Combination(
        "hydra.mode",
        lambda job: job["hydra.mode"] == "MULTIRUN" and job["started_by"],
        "a sweep starts processes of its own",
        "{started_by} starts one run",
        "leave {started_by} out",
        example={"hydra.mode": "MULTIRUN", "started_by": "srun"},
    ),
    Combination(
        "resume",
        lambda job: job["hydra.mode"] == "MULTIRUN" and job["resume"],
        "a sweep makes new runs",
        "one run can be resumed",
        "leave out -m",
        example={"hydra.mode": "MULTIRUN", "resume": "auto"},
    ),
    Combination(
        "launch.max_restarts",
        lambda job: job["launch.max_restarts"] and (job["started_by"] or job["launch.inline"]),
        "workers that another launcher starts, or that run inline, are not restarted",
        "0 is allowed with them",
        "leave it out: torchrun has --max-restarts",
        example={"launch.max_restarts": 3, "started_by": "torchrun"},
    ),
    _not_in_turns(
        lambda job: job["hydra/launcher"] != "basic",
        "hydra/launcher={hydra/launcher} may start runs on other hosts",
        Job({"hydra/launcher": "submitit_slurm"}),
    ),
    _not_in_turns(
        lambda job: job["launch.inline"],
        "launch.inline=true has one process for all runs",
        Job({"hydra/launcher": "basic", "launch.inline": True}),
    ),
)


def problems(job: Mapping[str, Any], refused: Sequence[Combination] = REFUSED) -> list[Failure]:
    """A failure for each combination in `job`, a resolved configuration, that is refused."""
    values = by_key(job)
    return [
        ConfigError(row.field, spelled(values[row.field]), *_filled(row, values))
        for row in refused
        if row.when(values)
    ]


def by_key(job: Mapping[str, Any]) -> Job:
    """Flatten a configuration to dotted keys, such as dataset.shape.

    Values that still hold a ${reference} are left out: only the worker of an evaluation resolves
    them.
    """
    values = Job(job)
    for section, node in job.items():
        if isinstance(node, Mapping):
            values |= {f"{section}.{key}": value for key, value in node.items()}
    return Job({k: v for k, v in values.items() if not (isinstance(v, str) and "${" in v)})


def _filled(row: Combination, job: Job) -> tuple[str, str, str]:
    """What is wrong, what is allowed and what to do."""

    def text(match: re.Match[str]) -> str:
        word = match[1]
        value = row.words[word](job) if word in row.words else job.get(word, "not given")
        return str(spelled(value))

    wrong, allowed, do = (
        re.sub(r"{([\w./]+)}", text, part) for part in (row.wrong, row.allowed, row.do)
    )
    return wrong, allowed, do
