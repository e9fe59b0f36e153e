"""Read the files in conf/ and experiments/: groups and their options."""

from __future__ import annotations

import functools
from pathlib import Path
from typing import Any

import yaml

from ninefold.files import safe_loader
from ninefold.places import CONF, EXPERIMENTS, option_files

STUDIES = "experiments"


def groups_of(command: str) -> dict[str, list[str]]:
    """The groups in the defaults list of the configuration, each with its options."""
    names = [name for name in defaults_of(command) if " " not in name]
    return {name: [path.stem for path in files_of(name)] for name in names}


def defaults_of(command: str) -> dict[str, Any]:
    """The defaults list of the configuration: the option of each group."""
    found = read_tree(CONF / f"{command}.yaml").get("defaults", [])
    return {
        str(k): option for entry in found if isinstance(entry, dict) for k, option in entry.items()
    }


def files_of(group: str) -> list[Path]:
    """The files of a group's options, or the studies, by their names."""
    return sorted(EXPERIMENTS.glob("*.yaml")) if group == STUDIES else option_files(group)


def options_of(group: str) -> dict[str, Path]:
    """The options of a group with their files; none of what is no name of a group."""
    return {path.stem: path for path in option_files(group)} if group.isidentifier() else {}


def option_file(group: str, option: str) -> Path:
    """The file of an option of ours, or where it would be."""
    files = {path.stem: path for path in files_of(group)}
    return files.get(option, CONF / group / f"{option}.yaml")


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
