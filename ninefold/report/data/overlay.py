"""recommended.yaml: an experiment file that trains with the configuration of the recommended cell.

It names the options of the config groups and those keys that the cell sets differently than conf/.
The study records them when it begins: see config.overlay.
"""

from __future__ import annotations

import textwrap
from collections.abc import Mapping, Sequence
from typing import Any

from ninefold.config.overlay import GROUPS, can_be_repeated, is_key, tree_of
from ninefold.config.rules import NAME
from ninefold.errors import one_line
from ninefold.files import flat
from ninefold.report.data.cells import groups, largest_first
from ninefold.report.data.rounds import name_of
from ninefold.report.data.runs import Run
from ninefold.study_record import StudyRecord


def overlays(runs: Sequence[Run], sweep: StudyRecord) -> dict[str, Any]:
    """Return what the study's plan says of each cell of the largest group: see config.overlay."""
    return {
        str(run.cell): sweep.overlays[name]
        for group in largest_first(groups(runs))[:1]
        for run in group.runs
        if run.ok and (name := name_of(run, sweep)) in sweep.overlays
    }


def settings_of(overlay: object) -> dict[str, Any]:
    """Return the options and values of an overlay by dotted key, empty if it is not one."""
    found = overlay if isinstance(overlay, dict) else {}
    choices, values = found.get("choices"), found.get("values")
    if not isinstance(choices, dict) or not isinstance(values, dict):
        return {}
    return {**choices, **flat(values)}


def left_out(overlay: Mapping[str, Any] | None) -> list[str]:
    """Return the keys that an overlay does not repeat, without those that are not valid keys."""
    return _keys(overlay, "left_out")


def arguments(overlay: Mapping[str, Any]) -> list[str]:
    """Return the further arguments of the command that trains with an overlay, for a shell."""
    asked = [f"{key}=VALUE" for key in left_out(overlay)]
    return [*asked, *(f"'~{key}'" for key in _keys(overlay, "taken_away"))]


def _keys(overlay: Mapping[str, Any] | None, name: str) -> list[str]:
    keys = (overlay or {}).get(name)
    return [key for key in (keys if isinstance(keys, list) else []) if is_key(key)]


def overlay_text(overlay: Mapping[str, Any], why: Sequence[str], command: str) -> str | None:
    """Return the text of recommended.yaml, None if the overlay is not valid.

    why: sentences for the comment at its top.
    """
    import yaml

    choices, values = overlay.get("choices"), overlay.get("values")
    if not isinstance(choices, dict) or not isinstance(values, dict):
        return None
    names = {group: choices[group] for group in GROUPS if group in choices}
    values = tree_of(
        {key: value for key, value in flat(values).items() if can_be_repeated(key, value)}
    )
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
