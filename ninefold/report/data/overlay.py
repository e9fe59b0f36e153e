"""recommended.yaml: an experiment file that trains with the configuration of the recommended cell.

It names the options of the config groups and those keys that the cell's runs set differently than
conf/. They are determined when the runs are recorded: a recording contains them.
"""

from __future__ import annotations

import functools
import re
import textwrap
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from ninefold.config.rules import NAME, OF_A_COMMAND
from ninefold.errors import one_line
from ninefold.report.data.cells import groups, largest_first
from ninefold.report.data.folders import CONFIG, read_yaml
from ninefold.report.data.runs import Run

CONF = Path(__file__).parents[3] / "conf"
GROUPS = ("parallel", "amp", "dataset", "task", "model", "optimizer", "scheduler")
# What a study measures with, and what differs from run to run.
NOT_TAKEN = (
    "seed",
    "resume",
    "numerics",
    "profile",
    "logger",
    "clock.ceiling",
    "clock.probe",
    *OF_A_COMMAND,
)
# Keys whose values are called: a report from anybody must not choose what is called.
CALLED = ("_target_", "()", "class")
_REFERENCES = re.compile(r"\$\{(?:oc\.(?:env|decode):[^${}]*|[\w.\[\]]+)\}")
_MISSING = object()


def overlays(folder: Path, runs: Sequence[Run]) -> dict[str, Any]:
    """Return the configuration of each cell of the largest group, as far as its runs agree.

    By cell:
    choices: the option of each config group
    values: the keys set differently than in conf/, as a tree
    left_out: the keys among these that are not repeated: they hold a path or name a callable
    taken_away: the keys that the options in conf/ have and the runs do not
    """
    found: dict[str, Any] = {}
    for group in largest_first(groups(runs))[:1]:
        for cell in dict.fromkeys(run.cell for run in group.runs):
            ok = [run for run in group.runs if run.cell == cell and run.ok]
            each = [_overlay(folder / run.folder) for run in ok]
            if known := [overlay for overlay in each if overlay is not None]:
                found[cell] = _shared(known)
    return found


def _overlay(run: Path) -> dict[str, Any] | None:
    """Return the configuration of a run folder as `overlays` does, its values by dotted key."""
    composed = read_yaml(run / ".hydra" / CONFIG)  # with references, which CONFIG has resolved
    choices = (read_yaml(run / CONFIG) or {}).get("choices")
    if composed is None or not isinstance(choices, dict):
        return None
    named = {group: choices[group] for group in GROUPS if isinstance(choices.get(group), str)}
    if not named or not all(map(NAME.fullmatch, named.values())):
        return None
    defaults = _defaults(tuple(named.items()))
    if isinstance(compiled := composed.get("compile"), bool):
        composed["compile"] = {"mode": "default" if compiled else None}
    before = dict(_leaves(defaults))
    after = dict(_leaves({key: composed[key] for key in defaults if key in composed}))
    differing = {
        key: value
        for key, value in after.items()
        if key not in NOT_TAKEN
        and not key.startswith(tuple(f"{name}." for name in NOT_TAKEN))
        and not _same(before.get(key, _MISSING), value)
    }
    values = {key: value for key, value in differing.items() if _can_be_repeated(key, value)}
    # Only of the groups: other keys may be missing because they were added later.
    options = [key for key in before if key.partition(".")[0] in named]
    return {
        "choices": named,
        "values": values,
        "left_out": [key for key in differing if key not in values],
        "taken_away": [key for key in options if key not in after],
    }


@functools.cache
def _defaults(named: tuple[tuple[str, str], ...]) -> dict[str, Any]:
    """The values in conf/ with these options of the groups."""
    ours = read_yaml(CONF / "train.yaml") or {}
    options = {group: read_yaml(CONF / group / f"{name}.yaml") for group, name in named}
    return {key: ours[key] for key in ours if key not in ("defaults", "hydra")} | options


def _leaves(tree: Mapping[Any, Any], place: str = "") -> Iterator[tuple[str, Any]]:
    """Return every value that is no mapping, with its dotted key; a list is one value."""
    for key, value in tree.items():
        if isinstance(value, dict) and value:
            yield from _leaves(value, f"{place}{key}.")
        else:
            yield f"{place}{key}", value


def _same(default: Any, value: Any) -> bool:
    if default is _MISSING or isinstance(default, bool) or isinstance(value, bool):
        return default is value
    try:  # 1e-3 is a text to one reader of YAML and a number to another
        return float(default) == float(value)
    except (TypeError, ValueError):
        return bool(default == value)


def _can_be_repeated(key: str, value: Any) -> bool:
    """Whether a value may be published in a recording and be composed by anybody."""
    if isinstance(value, list):
        return all(_can_be_repeated(key, item) for item in value)
    called = key.rpartition(".")[2] in CALLED or key.startswith(("hydra.", "defaults"))
    if called or not _is_key(key) or isinstance(value, dict):
        return False
    if not isinstance(value, str):
        return value is None or isinstance(value, bool | int | float)
    rest = _REFERENCES.sub("", value)
    return "${" not in rest and not rest.startswith(("/", "~", "\\")) and ":\\" not in rest


def _is_key(key: object) -> bool:
    return isinstance(key, str) and re.fullmatch(r"[\w.]+", key) is not None


def _shared(found: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Return the configuration that the runs of a cell have in common."""
    first = found[0]
    values = {
        key: value
        for key, value in first["values"].items()
        if all(_same(other["values"].get(key, _MISSING), value) for other in found)
    }
    left_out = sorted({key for overlay in found for key in overlay["left_out"]})
    taken_away = [
        key for key in first["taken_away"] if all(key in other["taken_away"] for other in found)
    ]
    return {
        "choices": first["choices"],
        "values": _tree(values),
        "left_out": left_out,
        "taken_away": taken_away,
    }


def _tree(values: Mapping[str, Any]) -> dict[str, Any]:
    tree: dict[str, Any] = {}
    for key, value in values.items():
        *sections, name = key.split(".")
        node = tree
        for section in sections:
            node = node.setdefault(section, {})
        node[name] = value
    return tree


def settings_of(overlay: object) -> dict[str, Any]:
    """Return the options and values of an overlay by dotted key, empty if it is not one."""
    found = overlay if isinstance(overlay, dict) else {}
    choices, values = found.get("choices"), found.get("values")
    if not isinstance(choices, dict) or not isinstance(values, dict):
        return {}
    return {**choices, **dict(_leaves(values))}


def left_out(overlay: Mapping[str, Any] | None) -> list[str]:
    """Return the keys that an overlay does not repeat, without those that are not valid keys."""
    return _keys(overlay, "left_out")


def arguments(overlay: Mapping[str, Any]) -> list[str]:
    """Return the further arguments of the command that trains with an overlay, for a shell."""
    asked = [f"{key}=VALUE" for key in left_out(overlay)]
    return [*asked, *(f"'~{key}'" for key in _keys(overlay, "taken_away"))]


def _keys(overlay: Mapping[str, Any] | None, name: str) -> list[str]:
    keys = (overlay or {}).get(name)
    return [key for key in (keys if isinstance(keys, list) else []) if _is_key(key)]


def overlay_text(overlay: Mapping[str, Any], why: Sequence[str], command: str) -> str | None:
    """Return the text of recommended.yaml, None if the overlay is not valid.

    why: sentences for the comment at its top.
    """
    import yaml

    choices, values = overlay.get("choices"), overlay.get("values")
    if not isinstance(choices, dict) or not isinstance(values, dict):
        return None
    names = {group: choices[group] for group in GROUPS if group in choices}
    values = _tree({key: value for key, value in _leaves(values) if _can_be_repeated(key, value)})
    if not all(isinstance(name, str) and NAME.fullmatch(name) for name in names.values()):
        return None
    head = [one_line(sentence) for sentence in why]
    head.append(f"Command:  {command}")
    if keys := ", ".join(left_out(overlay)):
        head.append(f"Not in here, because they hold a path or name something to call: {keys}.")
    if keys := ", ".join(_keys(overlay, "taken_away")):
        head.append(f"An overlay takes no key away; the command does: {keys}.")
    lines = [
        f"# {line}"
        for text in head
        for line in textwrap.wrap(text, 98, break_long_words=False, break_on_hyphens=False)
    ]
    parts = ["# @package _global_", *lines, "defaults:"]
    parts += [f"  - override /{group}: {name}" for group, name in names.items()]
    text = "\n".join(parts) + "\n"
    return text + "\n" + yaml.safe_dump(values, sort_keys=False) if values else text
