"""Read the files in conf/ and experiments/: groups, their options, and the keys that each has.

Some options of a group have keys that others lack: in a sweep `parallel=none,ddp
parallel.find_unused_parameters=true` sets the key of ddp; none has no such key.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import yaml

from ninefold.errors import ConfigError
from ninefold.files import safe_loader
from ninefold.places import CONF, EXPERIMENTS, option_files
from ninefold.words import key_and_value, key_of

STUDIES = "experiments"
GPUS = "parallel.devices"


def groups_of(command: str) -> dict[str, list[str]]:
    """The groups in the defaults list of the configuration, each with its options."""
    listed = read_tree(CONF / f"{command}.yaml").get("defaults", [])
    names = [str(name) for entry in listed if isinstance(entry, dict) for name in entry]
    return {name: [path.stem for path in files_of(name)] for name in names if " " not in name}


def files_of(group: str) -> list[Path]:
    """The files of a group's options, or the studies, by their names."""
    return sorted(EXPERIMENTS.glob("*.yaml")) if group == STUDIES else option_files(group)


def options_of(group: str) -> dict[str, Path]:
    """The options of a group with their files; none of what is no name of a group."""
    return {path.stem: path for path in option_files(group)} if group.isidentifier() else {}


@functools.cache
def keys_in(group: str, option: str | None) -> frozenset[str] | None:
    """The keys of an option of ours and of those that it extends; None: of another."""
    path = options_of(group).get(option or "")
    if path is None:
        return None
    tree = read_tree(path)
    extended = (keys_in(group, name) or () for name in tree.pop("defaults", ()))
    return frozenset(tree).union(*extended)


def read_tree(path: Path) -> dict[Any, Any]:
    """Read a file of conf/; empty if it is not YAML, which composing reports."""
    try:
        tree = yaml.load(path.read_text(encoding="utf-8"), safe_loader())
    except (OSError, ValueError, yaml.YAMLError):
        return {}
    return tree if isinstance(tree, dict) else {}


def is_own(text: str) -> bool:
    """Return whether an override sets a key that some options of its group have and others lack."""
    group, inside, _ = key_of(text).partition(".")
    having = [fits(text, option) for option in options_of(group)] if inside else []
    return text[:1] not in "+~" and any(having) and not all(having)


def fits(text: str, option: str | None) -> bool:
    """Return whether an option of a group has the key of an override; one of a user's own may."""
    group, _, name = key_of(text).partition(".")
    keys = keys_in(group, option)
    return keys is None or name.partition(".")[0] in keys


def names_gpus(text: str) -> bool:
    """Return whether an override, such as parallel.devices=[1], has a run train on other GPUs than
    the first. A strategy that has no such key may not leave it out.
    """
    key, value = key_and_value(text)
    return key.lstrip("+") == GPUS and value not in ("null", "[0]")


def other_gpus(value: str) -> ConfigError:
    """Return the error for a strategy without parallel.devices. value: of that key, as [1,2]."""
    wrong = "strategies of one process would train on the first GPU all the same"
    allowed = "all strategies of a comparison use the same GPUs"
    visible = value.strip("[]").replace(" ", "")
    do = f"leave it out (with like= type the other words), and set CUDA_VISIBLE_DEVICES={visible}"
    return ConfigError(GPUS, value, wrong, allowed, do)


def of_options(
    jobs: Sequence[Sequence[str]], choice: Callable[[str], str | None]
) -> list[list[str]]:
    """Return the overrides of the jobs of a sweep, without keys that a job's own options lack.

    A key that no job's option has is kept, so that it is refused. choice: a group's option where
    a job names none. Raises ConfigError if dropping a key would change which GPUs a job uses.
    """

    def fitting(text: str, job: Sequence[str]) -> bool:
        group = key_of(text).partition(".")[0]
        chosen = [word.partition("=")[2] for word in job if key_of(word) == group]
        return fits(text, chosen[-1] if chosen else choice(group))

    own = {text for job in jobs for text in job if is_own(text)}
    own = {text for text in own if any(text in job and fitting(text, job) for job in jobs)}
    left_out = {text for job in jobs for text in job if text in own and not fitting(text, job)}
    for text in filter(names_gpus, left_out):
        raise other_gpus(key_and_value(text)[1])
    return [[text for text in job if text not in left_out or fitting(text, job)] for job in jobs]
