"""What a cell of a study sets differently than conf/, so that it can be trained again elsewhere."""

from __future__ import annotations

import functools
import re
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from ninefold.config.rules import COMMAND_SECTIONS, NAME
from ninefold.errors import require_configuration
from ninefold.files import flat
from ninefold.places import CONF

if TYPE_CHECKING:
    from omegaconf import DictConfig

GROUPS = ("parallel", "amp", "dataset", "task", "model", "optimizer", "scheduler")
# What a study measures with, and what differs from run to run.
NOT_TAKEN = (
    "seed",
    "resume",
    "numerics",
    "profile",
    "logger",
    *COMMAND_SECTIONS,
)
# Keys whose values are called, by Hydra and by logging.config.dictConfig: neither a report nor a
# stored configuration, which may be anybody's, chooses what is called.
CALLED = ("_target_", "()", "class")
_REFERENCES = re.compile(r"\$\{(?:oc\.(?:env|decode):[^${}]*|[\w.\[\]]+)\}")
_MISSING = object()


def overlay_of(config: DictConfig) -> dict[str, Any] | None:
    """Return what a composed configuration sets, None if an option's name is no plain one.

    choices: the option of each config group
    values: the keys set differently than in conf/, as a tree
    left_out: the keys among these that are not repeated: they hold a path or name a callable
    taken_away: the keys that the options in conf/ have and this configuration does not
    """
    choices = config.hydra.runtime.choices
    named = {group: choices[group] for group in GROUPS if isinstance(choices.get(group), str)}
    if not all(map(NAME.fullmatch, named.values())):
        return None
    from omegaconf import OmegaConf  # only here: reports read overlays, and start without it

    defaults = _defaults(tuple(named.items()))
    before = flat(defaults)
    composed = OmegaConf.to_container(config, enum_to_str=True)  # with references
    assert isinstance(composed, dict)
    after = flat({key: composed[key] for key in defaults if key in composed})
    differing = {
        key: value
        for key, value in after.items()
        if key not in NOT_TAKEN
        and not key.startswith(tuple(f"{name}." for name in NOT_TAKEN))
        and not _same(before.get(key, _MISSING), value)
    }
    values = {key: value for key, value in differing.items() if can_be_repeated(key, value)}
    # Only of the groups: other keys may be missing because they were added later.
    # A group itself is among them where its option is the user's own, which conf/ does not have.
    options = [key for key in before if key.partition(".")[0] in named and key not in named]
    return {
        "choices": named,
        "values": tree_of(values),
        "left_out": [key for key in differing if key not in values],
        "taken_away": [key for key in options if key not in after],
    }


@functools.cache
def _defaults(named: tuple[tuple[str, str], ...]) -> dict[str, Any]:
    """The values in conf/ with these options of the groups."""
    from ninefold.config.conf_files import option_file, read_tree  # they import OmegaConf

    require_configuration()  # without it everything would be set differently
    ours = read_tree(CONF / "train.yaml")
    options = {group: read_tree(option_file(group, name)) for group, name in named}
    return {key: ours[key] for key in ours if key not in ("defaults", "hydra")} | options


@functools.cache
def default_choices() -> dict[str, str]:
    """The option of each group that conf/train.yaml has."""
    from ninefold.config.conf_files import defaults_of  # imports OmegaConf

    require_configuration()
    return {group: name for group, name in defaults_of("train").items() if isinstance(name, str)}


def _same(default: Any, value: Any) -> bool:
    if default is _MISSING or isinstance(default, bool) or isinstance(value, bool):
        return default is value
    try:  # 1e-3 is a text to one reader of YAML and a number to another
        return float(default) == float(value)
    except (TypeError, ValueError):
        return bool(default == value)


def can_be_repeated(key: str, value: Any) -> bool:
    """Whether a value may be published in a recording and be composed by anybody."""
    if isinstance(value, list):
        return all(can_be_repeated(key, item) for item in value)
    called = key.rpartition(".")[2] in CALLED or key.startswith(("hydra.", "defaults"))
    if called or not is_key(key) or isinstance(value, dict):
        return False
    if not isinstance(value, str):
        return value is None or isinstance(value, bool | int | float)
    rest = _REFERENCES.sub("", value)
    return "${" not in rest and not rest.startswith(("/", "~", "\\")) and ":\\" not in rest


def is_key(key: object) -> bool:
    return isinstance(key, str) and re.fullmatch(r"[\w.]+", key) is not None


def tree_of(values: Mapping[str, Any]) -> dict[str, Any]:
    tree: dict[str, Any] = {}
    for key, value in values.items():
        *sections, name = key.split(".")
        node = tree
        for section in sections:
            node = node.setdefault(section, {})
        node[name] = value
    return tree
