"""The recorded configuration of each cell: options of the config groups, and keys set by a study.

The study records them when it begins: see config.overlay.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any

from ninefold.config.overlay import GROUPS, can_be_repeated, default_choices, is_key
from ninefold.config.rules import NAME
from ninefold.files import flat
from ninefold.report.data.cell import PLAIN
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


def left_out(overlay: Mapping[str, Any] | None) -> list[str]:
    """Return the keys that an overlay does not repeat, without those that are not valid keys."""
    return _keys(overlay, "left_out")


def overlay_words(overlay: Mapping[str, Any]) -> list[str]:
    """Return the overrides that train with an overlay: what differs from the defaults of conf/.

    What it does not repeat is KEY=VALUE, for the user to fill in. Without the keys that say how
    several processes are started, where there is one.
    """
    choices, values = overlay.get("choices"), overlay.get("values")
    if not isinstance(choices, dict) or not isinstance(values, dict):
        return []
    usual = default_choices()
    words = [
        f"{group}={choices[group]}"
        for group in GROUPS
        if isinstance(name := choices.get(group), str) and NAME.fullmatch(name)
        if name != usual.get(group) or group in ("parallel", "amp")
    ]
    alone = choices.get("parallel") == PLAIN.parallel
    words += [
        f"{key}={_worded(value)}"
        for key, value in flat(values).items()
        if can_be_repeated(key, value) and not (alone and key.startswith("launch."))
    ]
    words += [f"{key}=VALUE" for key in left_out(overlay)]
    return words + [f"~{key}" for key in _keys(overlay, "taken_away")]


def _worded(value: Any) -> str:
    """A value as Hydra reads it."""
    if isinstance(value, list):
        return f"[{','.join(map(_worded, value))}]"
    if value is None or isinstance(value, bool):
        return json.dumps(value)
    text = str(value)
    plain = not isinstance(value, str) or re.fullmatch(r"[\w./+-]+", text)
    return text if plain else json.dumps(text)


def _keys(overlay: Mapping[str, Any] | None, name: str) -> list[str]:
    keys = (overlay or {}).get(name)
    return [key for key in (keys if isinstance(keys, list) else []) if is_key(key)]
