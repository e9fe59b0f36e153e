"""Check a job against the schema before torch is imported or a process is started."""

from __future__ import annotations

import difflib
import functools
import re
from collections.abc import Iterable, Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from ninefold.config import devices, graph, kernels, losses, masks, options, sharding
from ninefold.config.schema import BUILT, GROUPS, KEYS, Key, in_sections
from ninefold.config.stored import ADDED
from ninefold.errors import ConfigError, Failure
from ninefold.types import Call, accepts, allowed

# A name that becomes part of a path or a table: no separators, no blanks, no leading dot.
NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._-]{0,63}")
OF_A_SWEEP = ("study", "report")  # sections that no run has
OF_A_COMMAND = (*OF_A_SWEEP, "find", "find_lr")  # what no run has
SECTIONS = [name for name, key in KEYS.items() if key.is_section and name not in GROUPS]


def problems(
    job: Mapping[str, Any],
    known: Iterable[str],
    inner: Mapping[str, Iterable[str]] | None = None,
    required: Iterable[str] = (),
) -> list[Failure]:
    """All problems of `job`, a resolved configuration.

    known: its allowed top-level keys.
    inner: allowed keys by section and group, of those whose keys are known.
    required: keys that it must have, such as `checkpoint.keep`.
    """
    known, inner = set(known), inner or {}
    found = _unknown(job, known)
    for section, keys in inner.items():
        if isinstance(job.get(section), Mapping):
            found += _unknown(job[section], set(keys), f"{section}.")
    found += [
        ConfigError(
            key, spelled(job[key]), f"not a section; {key}.NAME=value is allowed; leave {key} whole"
        )
        for key in SECTIONS
        if key in job and not isinstance(job[key], Mapping)
    ]
    found += [
        ConfigError(key, "nothing", f"it is missing; a run needs it; do not take {key} away")
        for key in required
        if _lacks(job, key)
    ]
    loggers = job.get("logger")
    for name, node in loggers.items() if isinstance(loggers, Mapping) else ():
        if not accepts(Call, node):
            found.append(
                ConfigError(
                    f"logger.{name}",
                    spelled(node),
                    f"not allowed; {allowed(Call)}; take it away with ~logger.{name}",
                )
            )
    keys = {**KEYS}
    for group in BUILT:
        if isinstance(node := job.get(group), Mapping) and "_target_" in node:
            own = options.of_class(str(node["_target_"]))
            keys |= {f"{group}.{name}": key for name, key in own.items()}
    for field, key in keys.items():
        section, _, name = field.rpartition(".")
        node = job.get(section) if section else job
        if isinstance(node, Mapping) and name in node and not key.is_section:
            found += _breach(field, key, node[name])
    return found or _at_odds(job)


def breach(field: str, value: Any) -> list[Failure]:
    """A failure if the key `field` does not accept `value`; unknown keys accept any value."""
    key = options.find(field)
    return [] if key is None or key.is_section else _breach(field, key, value)


def _breach(field: str, key: Key, value: Any) -> list[Failure]:
    refers = isinstance(value, str) and "${" in value  # to a checkpoint's configuration
    if refers or accepts(key.kind, value):
        return []
    return [
        ConfigError(
            field,
            spelled(value),
            f"not allowed; {allowed(key.kind)}; correct {field}",
        )
    ]


def inner_keys(conf: Path, choices: Mapping[str, Any], evaluates: bool) -> dict[str, set[str]]:
    """The keys of the sections, and of the groups whose chosen option is a file in `conf`."""
    found = in_sections(evaluates)
    for group in ("parallel", "amp", "dataset", "model", "task"):
        keys = keys_of_option(conf, group, choices.get(group))
        if keys is not None:
            later = {n.partition(".")[2] for n in ADDED if n.startswith(f"{group}.")}
            found[group] = keys | later
    return found


def keys_of_option(conf: Path, group: str, option: object) -> set[str] | None:
    """The keys in the yaml of an option; None if it is in another folder, of the user."""
    path = conf / group / f"{option}.yaml"
    return set(map(str, _load(path))) if path.is_file() else None


@functools.cache  # all runs of a sweep read the same files
def _load(path: Path) -> dict[Any, Any]:
    from ninefold.config.conf_files import (
        read_tree,
    )  # late: it imports OmegaConf, which a report does not need

    return read_tree(path)


def _unknown(node: Mapping[str, Any], known: set[str], prefix: str = "") -> list[Failure]:
    return [
        ConfigError(
            f"{prefix}{key}",
            spelled(node[key]),
            f"no such key; {suggestion(key, known)}; remove it or correct its name",
        )
        for key in node
        if key not in known
    ]


def _lacks(job: Mapping[str, Any], field: str) -> bool:
    """Whether `job` has the section of `field` and no such key in it."""
    group, _, key = field.rpartition(".")
    node = job.get(group) if group else job
    return isinstance(node, Mapping) and key not in node


def _at_odds(job: Mapping[str, Any]) -> list[Failure]:
    """Combinations of allowed values that exclude each other."""
    dataset, model, scheduler = (
        node if isinstance(node := job.get(group), Mapping) else {}
        for group in ("dataset", "model", "scheduler")
    )
    found: list[Failure] = []
    shape, channels = dataset.get("shape"), model.get("input_channels")
    if isinstance(shape, list) and isinstance(channels, int):
        if not fits(shape[0], channels):
            found.append(misfit(shape[0], channels))
        found += [
            ConfigError(
                f"dataset.{key}",
                dataset[key],
                f"{len(dataset[key])} numbers, {shape[0]} channels; a number for each channel of "
                f"dataset.shape, or one for all, is allowed; correct dataset.{key}",
            )
            for key in ("mean", "std")
            if isinstance(dataset.get(key), list) and len(dataset[key]) not in (1, shape[0])
        ]
    layout = model.get("memory_format")
    if isinstance(shape, list) and layout == {3: "channels_last_3d", 4: "channels_last"}.get(
        len(shape)
    ):
        kind, allowed = ("images", "last") if len(shape) == 3 else ("volumes", "last_3d")
        found.append(
            ConfigError(
                "model.memory_format",
                layout,
                f"dataset.shape={shape} is of {kind}; contiguous_format and channels_{allowed} "
                f"are allowed with it; set model.memory_format=channels_{allowed}",
            )
        )
    for key, other in (("mean", "std"), ("std", "mean")):
        if dataset.get(key, 0) is None and isinstance(dataset.get(other), list):
            found.append(
                ConfigError(
                    f"dataset.{key}",
                    "null",
                    f"dataset.{other} is given; both or none are allowed; set dataset.{key}, or "
                    f"dataset.{other}=null",
                )
            )
    task = job.get("task")
    counted = dataset.get("classes", 0) is None
    if isinstance(task, Mapping) and task.get("classes", 0) is None and dataset and not counted:
        found.append(
            ConfigError(
                "task.classes",
                "null",
                f"dataset.classes is {dataset.get('classes', 'not given')}; a whole number of at "
                "least 1 is allowed; leave task.classes out",
            )
        )
    found += devices.problems(job) + kernels.problems(job) + masks.problems(job)
    if isinstance(task := job.get("task"), Mapping):
        found += _loss_problems(task.get("loss"))
    if dataset.get("cache") == "disk" and dataset.get("cache_rate", 1) != 1:
        found.append(
            ConfigError(
                "dataset.cache_rate",
                dataset["cache_rate"],
                "cache=disk keeps all; it goes with cache=ram; leave it out",
            )
        )
    if dataset.get("cache") == "disk" and dataset.get("cache_dir", "") is None:
        found.append(
            ConfigError(
                "dataset.cache_dir",
                "null",
                "cache=disk keeps decoded examples in it; a folder is allowed; name one, or leave "
                "it out",
            )
        )
    found += graph.problems(job) + sharding.problems(job)
    if scheduler.get("T_max") == 0 and job.get("epochs"):
        found.append(
            ConfigError(
                "scheduler.T_max",
                0,
                f"the cosine has no end in {job['epochs']} epochs; a whole number of at least 1 "
                "is allowed, epochs by default; leave it out",
            )
        )
    if job.get("clip_grad_norm") is not None and job.get("clip_grad_value") is not None:
        found.append(
            ConfigError(
                "clip_grad_value",
                job["clip_grad_value"],
                "clip_grad_norm is given; one of the two is allowed; set one of them to null",
            )
        )
    if job.get("ema_warmup") and job.get("ema", 0) is None:
        found.append(
            ConfigError(
                "ema_warmup",
                "true",
                "there is no average to warm up, as ema=null; a decay such as ema=0.999 is "
                "allowed with it; set ema, or leave ema_warmup out",
            )
        )
    return found


def _loss_problems(loss: Any) -> list[Failure]:
    """What can be seen of `task.loss` without importing it: a target that cannot exist."""
    target = loss.get("_target_") if isinstance(loss, Mapping) else None
    if not isinstance(target, str):
        return []
    name, top = target.removeprefix(losses.PREFIX), target.partition(".")[0]
    if target.startswith(losses.PREFIX) and "." not in name and name not in losses.TORCH:
        return [
            ConfigError(
                losses.PLACE,
                target,
                "torch.nn has no such loss of an output and a target; "
                f"{suggestion(name, losses.TORCH)}; correct the _target_",
            )
        ]
    if find_spec(top) is None:
        return [
            ConfigError(
                losses.PLACE,
                target,
                f"there is no module {top}; a class or function that Python can import is "
                "allowed; put its folder on PYTHONPATH, or correct the _target_",
            )
        ]
    return []


def uncounted(option: object) -> ConfigError:
    """The failure of dataset.classes=null for a dataset that does not count its classes."""
    return ConfigError(
        "dataset.classes",
        "null",
        f"dataset={option} cannot count them; folder and hf can; set dataset.classes",
    )


def fits(channels: int, wanted: int) -> bool:
    """Whether a model for `wanted` channels takes images of `channels`: gray ones are repeated."""
    return channels in (1, wanted)


def misfit(channels: int, wanted: int) -> ConfigError:
    """The failure of a model whose input has other channels than the images."""
    return ConfigError(
        "model.input_channels",
        wanted,
        f"the images have {channels} channels; {channels} is allowed, or gray images for any "
        "model; choose another model or dataset",
    )


def spelled(value: Any) -> Any:
    """`value` as spelled in YAML and on the command line."""
    if value is None or isinstance(value, bool):
        return "null" if value is None else str(value).lower()
    return value


def nearest(word: str, options: Iterable[str]) -> str:
    """Advice for a `word` that is not in `options`: the nearest one."""
    near = suggestion(word, options)
    return near if near.startswith("did you mean") else "name one of them"


def suggestion(word: str, known: Iterable[str]) -> str:
    """The names in `known` that resemble `word`, or all of them."""
    names = sorted(known)
    near = difflib.get_close_matches(word, names, n=3, cutoff=0.6)
    return f"did you mean {' or '.join(near)}?" if near else f"known are {', '.join(names)}"


def require_division(batch_size: int, processes: int, accumulate: int = 1) -> None:
    """Raise ConfigError unless the batch divides evenly by processes and micro-batches."""
    each, rest = divmod(batch_size, processes)
    if rest == 0 and each % accumulate == 0:
        return
    if rest == 0:
        raise ConfigError(
            "accumulate",
            accumulate,
            f"the {each} examples of a process do not divide so; micro-batches are equal; choose "
            f"a divisor of {each}",
        )
    below, above = (batch_size // processes) * processes, -(-batch_size // processes) * processes
    raise ConfigError(
        "batch_size",
        batch_size,
        f"does not divide by {processes} processes",
        "batch_size is global: every process takes an equal part",
        f"choose {below or above} or {above}" if below and below != above else f"choose {above}",
    )
