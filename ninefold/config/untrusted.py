"""Check a stored configuration, which anybody may have written, before it is instantiated.

Without trust=true it differs from the options in `conf/` by numbers, true, false, null and what its
keys list as their choices: text that anybody may choose, such as the name of a class, an address or
a path but dataset.root, needs the word. What the command itself has at the same place does not.
"""

from __future__ import annotations

import functools
import os
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import yaml
from omegaconf import OmegaConf

from ninefold.config import rules, schema
from ninefold.config.conf_files import STUDIES, files_of, read_tree
from ninefold.config.options import find, marked
from ninefold.errors import CheckpointError, require_configuration
from ninefold.extensions import MODELS
from ninefold.files import require_plain_yaml, safe_loader
from ninefold.places import option_files
from ninefold.types import MAY_CHANGE, NO_EFFECT, accepts, spelled

EVALUATED = ("model", "task", "dataset", "amp", "parallel")  # what an evaluation may take from it
PRETRAINED = {"weights", "weights_backbone", "pretrained"}  # arguments that name weights
LIBRARIES = ("ninefold", "torchvision", *MODELS)  # whose models have these arguments
DATA = "dataset.root"  # where the data lies, the one path that a stored configuration may name
ANY = "a.b"  # a text that no key lists, and that each key accepts which lists none
WITHOUT_TRUST = "options of conf/, numbers and listed choices are used without trust"
NEEDED = {"parallel": ("processes", "max_processes"), "model": ("net",)}


def parse(text: str) -> dict[str, Any]:
    """Read YAML that holds a mapping, with references unresolved. Raises ValueError."""
    try:
        require_plain_yaml(text)
        if not isinstance(yaml.compose(text, safe_loader()), yaml.MappingNode):
            raise ValueError("a mapping of keys to values is expected")
        tree: Any = OmegaConf.to_container(OmegaConf.create(text))
    except ValueError:
        raise
    except Exception as error:  # YAML's, OmegaConf's and Python's own, of many types
        raise ValueError(str(error).partition("\n")[0] or type(error).__name__) from error
    return {str(key): value for key, value in tree.items()}


def unknown(tree: Any, named: Any = None, place: str = "") -> Iterator[tuple[str, Any]]:
    """Find what needs trust=true in a stored configuration: (place, value) pairs.

    named: the configuration of this command. place: where the tree is in its own.
    """
    known = _of_conf() | {*texts(named)}
    for there, text in texts(tree, place):
        key = find(there)
        if (there, text) in known or (there == DATA and only_environment(str(text))):
            continue
        if key is None or key.is_section or not accepts(key.kind, text) or accepts(key.kind, ANY):
            yield there, text


def texts(tree: Any, place: str = "") -> Iterator[tuple[str, Any]]:
    """Every value in `tree` with its place, but numbers, true, false and null."""
    if isinstance(tree, Mapping):
        for key, value in tree.items():
            yield from texts(value, f"{place}.{key}".lstrip("."))
    elif isinstance(tree, list | tuple):
        for number, value in enumerate(tree):
            yield from texts(value, f"{place}.{number}")
    elif tree is not None and not isinstance(tree, bool | int | float):
        yield place, tree


@functools.cache
def _of_conf() -> frozenset[tuple[str, Any]]:
    """Every text in our options and studies with its place, as written and with ~ resolved."""
    require_configuration()  # without it nothing would be known
    files = [
        *((path, path.parent.name) for path in option_files()),
        *((path, "") for path in files_of(STUDIES)),
    ]
    found = {each for path, place in files for each in texts(read_tree(path), place)}
    return frozenset(found | {(place, os.path.expanduser(text)) for place, text in found})


def targets_in(tree: Any) -> set[str]:
    """The names of all that a configuration calls."""
    return {str(text) for place, text in texts(tree) if f".{place}".endswith("._target_")}


def for_evaluation(
    text: str,
    path: Path,
    named: Mapping[str, Any],
    trusted: bool = False,
    in_python: bool = False,
) -> dict[str, Any]:
    """The groups that an evaluation takes from the configuration in a checkpoint.

    They are those that the command does not choose itself, checked as the module says. `others` are
    the rest of it that passes, as plain data that the command's own groups may refer to, such as
    the seed. Raises CheckpointError.

    named: the groups as the command has them, None where it chooses nothing.
    trusted: whether it may have any text, and refer to the environment everywhere.
    in_python: whether a function was called, and no command typed.
    """
    try:
        tree = parse(text)
    except ValueError as error:
        unread, do = "its configuration cannot be read", "see config.yaml of a run of ninefold"
        raise CheckpointError("ckpt", path, unread, str(error), do) from error
    taken = {
        group: tree[group]
        for group in EVALUATED
        if tree.get(group) is not None and named.get(group) is None
    }
    dataset = taken.get("dataset")
    if isinstance(dataset, dict):  # a command says where examples are kept
        for key in ("cache", "cache_dir", "resident"):
            dataset.pop(key, None)
    for place, value in () if trusted else unknown(taken):
        raise refused("ckpt", path, place, value, in_python)
    for wrong in (*references(taken), *misfits(taken), *rules.problems(taken, taken)):
        allowed = str(wrong)
        do = "name that group on the command line, as in model=convnet"
        do = "use the version of ninefold that wrote it" if in_python else do
        raise CheckpointError("ckpt", path, "its configuration is not used as it is", allowed, do)
    if "dataset" in taken and "download" in taken["dataset"]:
        taken["dataset"]["download"] = False  # only a command may download
    if "model" in taken:  # as these would download; the checkpoint has weights
        net = taken["model"]["net"]
        taken["model"]["net"] = {**net, **dict.fromkeys(PRETRAINED & net.keys())}
    choices = tree.get("choices")
    choices = choices if isinstance(choices, dict) else {}
    names = {group: str(choices.get(group)) for group in taken}
    taken["choices"] = {
        group: name if rules.NAME.fullmatch(name) else "unknown" for group, name in names.items()
    }
    others = {
        key: node
        for key, node in tree.items()
        if key not in (*EVALUATED, "choices")
        and not any("${" in str(text) for _, text in texts(node))
        and (trusted or not any(unknown(node, place=key)))
    }
    return {**taken, **({"others": others} if others else {})}


def edited(saved: object, now: str) -> list[str]:
    """How the job `now` of a resumed run differs from `saved`, the one in its checkpoint.

    As `key=now (was before)`, of the keys that may not change in a resumed run and affect its
    results. Both are YAML.
    """
    if not isinstance(saved, str):
        return []
    try:
        before, after = parse(saved), parse(now)
    except ValueError:
        return []  # the weights have been verified, and that text has no other use here
    other = (*marked(MAY_CHANGE), *marked(NO_EFFECT), "choices")
    return schema.differences(before, after, other)


def pretrained(net: Mapping[str, Any]) -> tuple[str, Any] | None:
    """The key of `model.net` that names pretrained weights, with its value; None without one."""
    asked = [(key, net[key]) for key in sorted(PRETRAINED & net.keys()) if net[key]]
    return asked[0] if asked else None


def fetching(target: str) -> str | None:
    """The module with `fetch` and `pretrained` for what `target` builds; None for a user's own."""
    module = target.rpartition(".")[0]
    return module if module.partition(".")[0] in LIBRARIES else None


def only_environment(text: str) -> bool:
    """Whether `text` refers to nothing but environment variables."""
    while "${" in text:
        shorter = re.sub(r"\$\{oc\.(env|decode):[^{}]*\}", "", text)
        if shorter == text:
            return False
        text = shorter
    return True


def misfits(tree: Mapping[str, Any]) -> Iterator[str]:
    """Problems of the groups in `tree`: missing keys, and groups that are no mappings."""
    for group, keys in NEEDED.items():
        node = tree.get(group)
        if group in tree and isinstance(node, Mapping):
            yield from (f"it has no {group}.{key}" for key in keys if key not in node)
    for group in tree:
        if not isinstance(tree[group], Mapping):
            yield f"{group} is no section"


def refused(
    field: str, path: Path, place: str, value: Any, in_python: bool = False
) -> CheckpointError:
    """The failure of a stored configuration with a value that is `unknown`."""
    group = place.partition(".")[0]
    value_too = "" if place.endswith("._target_") else f" ++{place}=VALUE"
    wrong = f"its configuration has {place}={spelled(value)}, which is not in conf/"
    do = f"add trust=true if you made it, or name it, as in {group}=NAME{value_too}"
    do = "pass trust=True if you made it" if in_python else do
    return CheckpointError(field, path, wrong, WITHOUT_TRUST, do)


def references(tree: Mapping[str, Any]) -> Iterator[str]:
    """What in a configuration refers past the environment."""
    for place, text in texts(tree):
        if not only_environment(str(text)):
            yield f"it refers to something in {place}"
