"""Check a stored configuration, which anybody may have written, before it is instantiated.

Without trust=true it may name only what `conf/` names: at each place a `_target_` and keys that are
there in a file of `conf/`, with values that the types of the keys accept, and no address and no
path but dataset.root. What the command itself has at the same place is the user's own.
"""

from __future__ import annotations

import functools
import os
import re
import unicodedata
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from omegaconf import OmegaConf

from ninefold.config import rules, schema
from ninefold.config.conf_files import read_tree
from ninefold.config.options import find, marked
from ninefold.config.schema import Key
from ninefold.errors import CheckpointError, require_configuration
from ninefold.extensions import MODELS
from ninefold.files import require_plain_yaml
from ninefold.places import option_files
from ninefold.types import MAY_CHANGE, NO_EFFECT, Target, accepts, spelled

EVALUATED = (
    "model",
    "task",
    "dataset",
    "amp",
    "parallel",
)  # groups that an evaluation may take from it
PRETRAINED = {"weights", "weights_backbone", "pretrained"}  # arguments that name weights
LIBRARIES = ("ninefold", "torchvision", *MODELS)  # whose models have these arguments
OF_OBJECTS = "ninefold.api."  # targets that build what ninefold.compare was given
DATA = "dataset.root"  # where the data lies, the one path that a stored configuration may name
# In a text of no fixed choices: what makes a path, an address or a reference of it.
_LEADS = re.compile(r"[/\\$@]|^~|\.\.|^[\w.-]+:")
NEEDED = {
    "parallel": ("processes", "max_processes"),
    "model": ("net",),
}


def parse(text: str) -> dict[str, Any]:
    """Read YAML that holds a mapping, with references unresolved. Raises ValueError."""
    try:
        require_plain_yaml(text)
        tree = OmegaConf.to_container(OmegaConf.create(text))
    except ValueError:
        raise
    except Exception as error:  # YAML's, OmegaConf's and Python's own, of many types
        raise ValueError(str(error).partition("\n")[0] or type(error).__name__) from error
    if not isinstance(tree, dict):
        raise ValueError(f"a mapping is expected, it is a {type(tree).__name__}")
    return {str(key): value for key, value in tree.items()}


@functools.cache
def allowed() -> dict[str, dict[str | None, frozenset[str]]]:
    """What conf/ names: by place, such as `model.net`, the keys beside each `_target_` or none."""
    require_configuration()  # without it nothing would be allowed
    found: dict[str, dict[str | None, frozenset[str]]] = {}
    for path in option_files():
        for place, node in _nodes(read_tree(path), path.parent.name):
            targets, target = found.setdefault(place, {}), node.get("_target_")
            targets[target] = targets.get(target, frozenset()) | frozenset(map(str, node))
    return found


def require_known_targets(
    tree: Any,
    field: str,
    path: Path,
    user: Mapping[str, Any] | None = None,
    trusted: bool = False,
) -> None:
    """Raise CheckpointError if `tree` names a target that is not `allowed` at its place.

    user: the targets in the configuration of this command, which are allowed at their places too.
    trusted: whether any `_target_` that is a dotted name is allowed.
    """
    for place, node in _nodes(tree, ""):
        for key, target in node.items():
            if _plain(key) not in rules.CALLED:
                continue
            known = key == "_target_" and isinstance(target, str)
            if known and (target in allowed().get(place, {}) or (user or {}).get(place) == target):
                continue
            if known and trusted and accepts(Target, target):
                continue
            group = place.partition(".")[0]
            ours = str(target).startswith("ninefold.") and not str(target).startswith(OF_OBJECTS)
            went = field == "ckpt" and group in EVALUATED and ours
            instead = f"name that group on the command line, as in {group}=NAME, or " * went
            raise CheckpointError(
                field,
                path,
                f"its configuration names the target {target} at {place or 'its top'}.{key}, which "
                f"is {'another version' if went else 'yours or a stranger'}'s",
                "only what conf/ names there is built",
                f"{instead}{'take it out' if trusted else 'add trust=true if you made it'}",
            )


def foreign(
    value: Any, named: Any = None, place: str = "", key: Key | None = None
) -> Iterator[tuple[str, Any]]:
    """Find what conf/ does not name in a stored configuration: (place, value) pairs.

    named: the same of this command. key: the declaration of the value. What is in a section whose
    `_target_` conf/ does not have is left to `require_known_targets`.
    """
    if value == named:
        return
    if isinstance(value, Mapping):
        targets, target = allowed().get(place, {}), value.get("_target_")
        if target is not None and target not in targets:
            return
        # The type of a key without a `_target_` in it says what it may hold, such as dataset.shape.
        any_name = not place or (key is not None and not key.is_section and target is None)
        for name, inner in value.items():
            there = f"{place}.{name}".lstrip(".")
            declared = find(there)
            if not (any_name or declared or str(name) in targets.get(target, ())):
                yield there, inner
                continue
            own = named.get(name) if isinstance(named, Mapping) else None
            yield from foreign(inner, own, there, declared)
    elif isinstance(value, list | tuple):
        for each in value:
            yield from foreign(each, None, place, key)
    elif isinstance(value, str) and leads_away(place, value):
        yield place, value


def leads_away(place: str, text: str) -> bool:
    """Return whether a text may be an address, a path but that of the data, or a reference."""
    if (place, text) in _texts_of_conf():
        return False
    if place == DATA:
        return not only_environment(text)
    key = find(place)
    # Its type lists what is allowed.
    chosen = key is not None and not key.is_section and not accepts(key.kind, "/")
    return "${" in text or (not chosen and bool(_LEADS.search(text) or place.startswith("logger.")))


@functools.cache
def _texts_of_conf() -> set[tuple[str, str]]:
    """Every text in conf/ with its place, as written and with ~ resolved, as a run has it."""
    found = {s for path in option_files() for s in strings(read_tree(path), path.parent.name)}
    return found | {(place, os.path.expanduser(text)) for place, text in found}


def targets_in(tree: Any) -> dict[str, Any]:
    """Each `_target_` in a configuration by its place, such as `model.net`."""
    return {place: node["_target_"] for place, node in _nodes(tree, "") if "_target_" in node}


def for_evaluation(
    text: str,
    path: Path,
    named: Mapping[str, Any],
    trusted: bool = False,
) -> dict[str, Any]:
    """The groups that an evaluation takes from the configuration in a checkpoint.

    They are those that the command does not choose itself, checked as the module says. `others` are
    the rest of it, as plain data that the command's own groups may refer to, such as the seed.
    Raises CheckpointError.

    named: the groups as the command has them, None where it chooses nothing.
    trusted: whether its own targets and their arguments are allowed, and references to the
        environment everywhere.
    """
    try:
        tree = parse(text)
    except ValueError as error:
        raise CheckpointError(
            "ckpt",
            path,
            "its configuration cannot be read",
            f"{error!s}",
            "see config.yaml of a run of ninefold",
        ) from error
    replaced = {group for group in EVALUATED if named.get(group) is not None}
    others = {group: node for group, node in tree.items() if group not in replaced}
    require_known_targets(others, "ckpt", path, trusted=trusted)
    taken = {
        group: tree[group]
        for group in EVALUATED
        if tree.get(group) is not None and group not in replaced
    }
    dataset = taken.get("dataset")
    if isinstance(dataset, dict):  # a command says where examples are kept
        for key in ("cache", "cache_dir", "resident"):
            dataset.pop(key, None)
    for place, value in () if trusted else foreign(taken):
        raise not_named("ckpt", path, place, value)
    for wrong in (*_references(taken), *misfits(taken), *rules.problems(taken, taken)):
        raise CheckpointError(
            "ckpt",
            path,
            "its configuration is not used as it is",
            str(wrong),
            "name that group on the command line, as in model=convnet",
        )
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
        if key not in (*EVALUATED, "choices") and not any("${" in text for _, text in strings(node))
    }
    return {**taken, **({"others": others} if others else {})}


def edited(saved: object, now: str) -> list[str]:
    """How the job `now` of a resumed run differs from `saved`, the one in its checkpoint.

    As `key=now (was before)`, of the keys that may not change in a resumed run and affect its
    results. Where the data lies may differ: it may have been moved. Both are YAML.
    """
    if not isinstance(saved, str):
        return []
    try:
        before, after = parse(saved), parse(now)
    except ValueError:
        return []  # the weights have been verified, and that text has no other use here
    other = (*marked(MAY_CHANGE), *marked(NO_EFFECT), "choices", "dataset.root")
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


def strings(tree: Any, place: str = "") -> Iterator[tuple[str, str]]:
    """Every string in `tree` with its place, keys included."""
    if isinstance(tree, Mapping):
        for key, value in tree.items():
            inner = f"{place}.{key}".lstrip(".")
            yield inner, str(key)
            yield from strings(value, inner)
    elif isinstance(tree, list | tuple):
        for number, value in enumerate(tree):
            yield from strings(value, f"{place}.{number}")
    elif isinstance(tree, str):
        yield place, tree


def misfits(tree: Mapping[str, Any]) -> Iterator[str]:
    """Problems of the groups in `tree`: missing keys, and groups that are no mappings."""
    for group, keys in NEEDED.items():
        node = tree.get(group)
        if group in tree and isinstance(node, Mapping):
            yield from (f"it has no {group}.{key}" for key in keys if key not in node)
    for group in tree:
        if not isinstance(tree[group], Mapping):
            yield f"{group} is no section"


def not_named(field: str, path: Path, place: str, value: Any) -> CheckpointError:
    """The failure of a stored configuration with a value that conf/ does not name."""
    group = place.partition(".")[0]
    return CheckpointError(
        field,
        path,
        f"its configuration has {place}={spelled(value)}, which is yours or a stranger's",
        "only what conf/ names is used, with no address and no path",
        f"add trust=true if you made it, or name it, as in {group}=NAME ++{place}=VALUE",
    )


def _references(taken: Mapping[str, Any]) -> Iterator[str]:
    for place, text in strings(taken):
        if "${" in text and not only_environment(text):
            yield f"it refers to something in {place}"


def _nodes(tree: Any, place: str) -> Iterator[tuple[str, Mapping[Any, Any]]]:
    """Every mapping in `tree` with its place, those in lists included."""
    pairs: Any = ()
    if isinstance(tree, Mapping):
        yield place, tree
        pairs = tree.items()
    elif isinstance(tree, list | tuple):
        pairs = enumerate(tree)
    for key, value in pairs:
        yield from _nodes(value, f"{place}.{key}".lstrip("."))


def _plain(key: Any) -> str:
    """`key` without blanks, unprintable characters and look-alikes of other widths."""
    text = unicodedata.normalize("NFKC", str(key))
    return "".join(c for c in text if c.isprintable() and not c.isspace()).lower()
