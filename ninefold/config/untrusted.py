"""Check a stored configuration, which anybody may have written, before it is instantiated.

To instantiate a `_target_` is to run code. From a stored configuration only those that `conf/`
names at the same place are built, at `task.loss` PyTorch's own losses too, and only references to
the environment are resolved. With trust=true its own targets are built, too.
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
from ninefold.config.options import marked
from ninefold.config.overlay import CALLED
from ninefold.errors import CheckpointError, require_configuration
from ninefold.extensions import MODELS
from ninefold.files import require_plain_yaml
from ninefold.places import option_files
from ninefold.types import MAY_CHANGE, NO_EFFECT, Target, accepts

EVALUATED = (
    "model",
    "task",
    "dataset",
    "amp",
    "parallel",
)  # groups that an evaluation may take from it
PRETRAINED = {"weights", "weights_backbone", "pretrained"}  # arguments that name weights
LIBRARIES = ("ninefold", "torchvision", *MODELS)  # whose models have these arguments
# Losses of torch.nn that task.loss may name: they take an output and a target. A number, a flag or
# a word can do no harm as one of these arguments; class weights are a TENSOR of numbers.
TORCH_LOSSES: Mapping[str, tuple[str, ...]] = {
    "BCELoss": ("weight",),
    "BCEWithLogitsLoss": ("weight", "pos_weight"),
    "CrossEntropyLoss": ("weight", "ignore_index", "label_smoothing"),
    "HingeEmbeddingLoss": ("margin",),
    "HuberLoss": ("delta",),
    "KLDivLoss": ("log_target",),
    "L1Loss": (),
    "MSELoss": (),
    "MultiLabelMarginLoss": (),
    "MultiLabelSoftMarginLoss": ("weight",),
    "MultiMarginLoss": ("p", "margin", "weight"),
    "NLLLoss": ("weight", "ignore_index"),
    "PoissonNLLLoss": ("log_input", "full", "eps"),
    "SmoothL1Loss": ("beta",),
    "SoftMarginLoss": (),
}
TENSOR = {"torch.tensor": frozenset({"_target_", "data"})}
CACHE = "dataset.cache_dir"
OF_OBJECTS = "ninefold.api."  # targets that build what ninefold.compare was given
# Arguments of a logger, with the texts that lead nowhere: names within the place that it logs to.
NAMES = {"experiment": ".*", "project": ".*", "group": ".*", "mode": "offline"}
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
def allowed() -> dict[str, dict[str, frozenset[str]]]:
    """What may be built: by place, such as `model.net`, each `_target_` with its keys.

    It is what conf/ names, and PyTorch's own losses.
    """
    require_configuration()  # without it nothing would be allowed
    found = {"task.loss.weight": TENSOR, "task.loss.pos_weight": TENSOR}
    found["task.loss"] = {
        f"torch.nn.{name}": frozenset({"_target_", "reduction", *arguments})
        for name, arguments in TORCH_LOSSES.items()
    }
    for path in option_files():
        for place, node in _nodes_of(path):
            if "_target_" in node:
                targets = found.setdefault(place, {})
                keys = frozenset(map(str, node))
                targets[node["_target_"]] = targets.get(node["_target_"], frozenset()) | keys
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
            if _plain(key) not in CALLED:
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


def foreign_references(tree: Any, named: Any) -> list[str]:
    """The places in `tree`, but for dataset.root, that refer to the environment otherwise than
    conf/ and `named`, the configuration of this command: what is built there may hand it on.
    """
    found = [s for s in strings(tree) if "${" in s[1] and s[0] != "dataset.root"]
    return [place for place, _ in _foreign(found, named)]


def foreign_arguments(tree: Mapping[str, Any], named: Any) -> list[tuple[str, Any]]:
    """The (key, value) pairs of `tree`, a stored configuration, that neither conf/ nor `named`, the
    configuration of this command, has at the same place: keys that `_foreign_keys` finds, and the
    strings of loggers and of dataset.cache_dir, which may lead to another's server or file.
    """
    texts = [each for each in strings(tree) if _leads_elsewhere(*each)]
    if not tree["dataset"].get("cache"):  # nothing is written there
        texts = [each for each in texts if each[0] != CACHE]
    return [*_foreign_keys(tree, named), *_foreign(texts, named)]


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

    They are those that the command does not choose itself. They are checked as the module says;
    only dataset.root may refer to the environment, unless it is trusted. `others` are the rest of
    it, as plain data that the command's own groups may refer to, such as the seed. Raises
    CheckpointError.

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
            f"its configuration cannot be read; {error!s}; see config.yaml of a run of ninefold",
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
    odd = () if trusted else _foreign_keys(taken)
    foreign = (f"conf/ has no {key} for it" for key, _ in odd)
    problems = (*misfits(taken), *rules.problems(taken, taken))
    for wrong in (*_references(taken, trusted), *foreign, *problems):
        raise CheckpointError(
            "ckpt",
            path,
            f"its configuration is not used as it is; {wrong}; name that group on the command "
            "line, as in model=convnet",
        )
    if "dataset" in taken and "download" in taken["dataset"]:
        taken["dataset"]["download"] = False  # only a command may download
    if "model" in taken:  # as these would download; the checkpoint has weights
        taken["model"]["net"] = without_pretrained(taken["model"]["net"])
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


def without_pretrained(net: Mapping[str, Any]) -> dict[str, Any]:
    """`model.net` with the arguments that name pretrained weights set to null.

    Also where they are left out: torchvision's default is to download some.
    """
    known = set(net)
    target = str(net.get("_target_"))
    for path in option_files("model"):
        if target in path.read_text():  # each run comes here: to parse all files takes 0.1 s
            known.update(*(node for _, node in _nodes_of(path) if node.get("_target_") == target))
    return {**net, **dict.fromkeys(PRETRAINED & known)}


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


def _references(taken: Mapping[str, Any], trusted: bool) -> Iterator[str]:
    for place, text in strings(taken):
        plain = only_environment(text) and (trusted or place == "dataset.root")
        if "${" in text and not plain:
            yield f"it refers to something in {place}"


def _foreign_keys(taken: Any, named: Any = None) -> Iterator[tuple[str, Any]]:
    """Arguments that neither conf/ nor `named` gives a target: torchvision's `weights` would
    download, timm's `checkpoint_path` reads a file. A target that conf/ does not have is the
    command's own, or trusted. In a run that is resumed numbers are no such arguments, and nothing
    that torch.optim takes: neither leads anywhere.
    """
    mine = dict(_nodes(named, ""))
    numbers = () if named is None else (int, float)
    for place, node in _nodes(taken, ""):
        target = str(node.get("_target_"))
        known = allowed().get(place, {}).get(target)
        if known is None or target.startswith("torch.optim."):
            continue
        own = mine.get(place, {})
        if own.get("_target_") == target:
            known = known.union(own)
        for key, value in node.items():
            if key not in known and type(value) not in numbers:
                yield f"{place}.{key}", value


def _foreign(found: list[tuple[str, str]], named: Any) -> list[tuple[str, str]]:
    """Those of the texts `found` that neither conf/ nor `named` has at their places."""
    mine = _with_home(named)
    odd = [text for text in found if text not in mine]
    files = option_files() if odd else ()
    conf = {s for path in files for s in _with_home(read_tree(path), path.parent.name)}
    return [text for text in odd if text not in conf]


def _with_home(tree: Any, place: str = "") -> set[tuple[str, str]]:
    """`strings`, and each as a run has it, with ~ resolved."""
    found = {*strings(tree, place)}
    return found | {(place, os.path.expanduser(text)) for place, text in found}


def _leads_elsewhere(place: str, text: str) -> bool:
    """Whether `text` may lead out of the run's folder: to a cache, or to where a logger writes."""
    group, *inner = place.split(".", 2)
    if group != "logger" or len(inner) < 2:
        return place == CACHE
    names = NAMES.get(inner[1])
    return names is None or not re.fullmatch(names, text)


def _nodes_of(path: Path) -> Iterator[tuple[str, Mapping[Any, Any]]]:
    """Every mapping in a file of conf/ with its place."""
    return _nodes(read_tree(path), path.parent.name)


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
