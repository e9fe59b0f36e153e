"""Finds the keys of an option's class, with their types, and what else it declares.

Of a class NAME in a module MODULE it stands beside it in MODULE_keys, of one in a package MODULE
in its own MODULE_keys. Its keys are the fields of NAMEKeys, a ninefold.types.Section; REFUSED are
the combinations that it refuses, PLACES the places of options in tables. The launcher imports that
module alone: a command that checks a configuration imports neither torch nor the option's module.
"""

from __future__ import annotations

import functools
import re
import sys
from collections.abc import Mapping
from importlib.util import module_from_spec, spec_from_file_location
from types import ModuleType
from typing import Any

import msgspec

from ninefold import types
from ninefold.config.combinations import Combination
from ninefold.config.schema import GROUPS, KEYS, OPTIONS, Key, keys_of
from ninefold.errors import ConfigError, located, require_package
from ninefold.files import read_text
from ninefold.places import file_of, option_files


def find(field: str) -> Key | None:
    """The key `field`, also if only one option of its group in conf/ has it."""
    group, _, name = field.partition(".")
    return KEYS.get(field) or (of_group(group).get(name) if group in GROUPS else None)


def option_keys() -> dict[str, Key]:
    """Every key of every group: first what all of its options may have, then what some declare."""
    found: dict[str, Key] = {}
    for group in GROUPS:
        found |= {name: key for name, key in OPTIONS.items() if name.startswith(f"{group}.")}
        found |= {f"{group}.{name}": key for name, key in of_group(group).items()}
    return found


@functools.cache
def marked(mark: str) -> tuple[str, ...]:
    """The keys that carry `mark`, such as types.MAY_CHANGE; a section's mark is of its keys too."""
    return tuple(name for name, key in {**KEYS, **option_keys()}.items() if mark in key.marks)


@functools.cache
def of_group(group: str) -> dict[str, Key]:
    """The keys that only one option in conf/GROUP/ has, by their names in it."""
    found: dict[str, Key] = {}
    for target in _targets(group):
        found |= of_class(target)
    return found


@functools.cache
def places(group: str) -> dict[str, int]:
    """The places of options of a group in tables, by name: the simplest first."""
    found: dict[str, int] = {}
    for target in _targets(group):
        found |= getattr(_beside(target), "PLACES", {})
    return found


def _targets(group: str) -> list[str]:
    """The classes that the options in conf/GROUP/ name."""
    texts = map(read_text, option_files(group))
    found = (re.search(r"^_target_: (\S+)", text, re.MULTILINE) for text in texts)
    return [target[1] for target in found if target]


@functools.cache
def of_class(target: str) -> dict[str, Key]:
    """The keys of the class with the dotted name `target`. Raises ConfigError, see `_beside`."""
    section = getattr(_beside(target), f"{target.rpartition('.')[2]}Keys", None)
    return keys_of(section) if section else {}


def refused_by(target: str) -> tuple[Combination, ...]:
    """The combinations that an option refuses. Raises ConfigError, see `_beside`."""
    return tuple(getattr(_beside(target), "REFUSED", ()))


def require_packages(job: Mapping[str, Any]) -> None:
    """See that the network and the loggers of `job` have the packages that they say they need.

    A module MODULE_keys says so as PACKAGE: so are the package, the option and our extra called.
    Raises ConfigError.
    """
    nodes = [("model", job["model"]["net"])]
    nodes += [("logger", node) for node in (job["logger"] or {}).values()]
    for group, node in nodes:
        if package := getattr(_beside(str(node["_target_"])), "PACKAGE", None):
            require_package(group, package, package, package)


@functools.cache
def _beside(target: str) -> ModuleType | None:
    """The module MODULE_keys beside the MODULE that the dotted name `target` is in, if any.

    Raises ConfigError if it does not run, or has a key of a type that msgspec cannot check.
    """
    if not types.accepts(types.Target, target):
        return None
    module = target.rpartition(".")[0]
    last = module.rpartition(".")[2]
    names = (f"{module}_keys", f"{module}.{last}_keys")  # the second of a package MODULE
    name, file = next(((name, file) for name in names if (file := file_of(name))), ("", None))
    spec = spec_from_file_location(name, file) if file else None
    if spec is None or spec.loader is None:
        return None
    found = sys.modules[name] = module_from_spec(spec)  # where msgspec looks for its names
    try:
        spec.loader.exec_module(found)
        for each in vars(found).values():
            if isinstance(each, type) and issubclass(each, types.Section):
                msgspec.json.schema(each)
    except Exception as error:
        wrong, do = "its keys, and what it refuses, cannot be read", f"correct {file}"
        raise ConfigError("_target_", target, wrong, located(error), do) from error
    return found
