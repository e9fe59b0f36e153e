"""environment.json: the conditions that the runs of a sweep had in common."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from ninefold.answer.runs import Run
from ninefold.errors import ConfigError
from ninefold.files import read_json
from ninefold.study_record import StudyRecord

_KINDS: dict[str, type] = {"environment": dict, "sweep": dict, "devices": list}
_CONDITIONS = ("study", "dataset", "model", "batch_size", "epochs", "threads")


def gather(
    runs: Sequence[Run], environments: Sequence[Mapping[str, Any]], sweep: Mapping[str, Any]
) -> dict[str, Any]:
    """Return the content of environment.json.

    A value that all runs share is stored as it is, values that differ as `{"values": [...]}`, and
    the times of the runs as `{"first": ..., "last": ...}`. Runs that do not know a value, or do not
    count in their study, are left out. `devices` holds each name as often as the run with the most
    of them.
    """
    names = dict.fromkeys(name for environment in environments for name in environment)
    shared = {name: _merge(environment.get(name) for environment in environments) for name in names}
    times = sorted(str(item["time"]) for item in environments if item.get("time"))
    if times:
        shared["time"] = {"first": times[0], "last": times[-1]}
    counted = [run for run in runs if run.counts]
    devices: Counter[str] = Counter()
    for run in runs:
        devices |= Counter(run.devices)
    return {
        **{name: _merge(getattr(run, name) for run in counted) for name in _CONDITIONS},
        "epochs": _merge(run.to_train if run.timed else run.epochs for run in counted),
        "devices": sorted(devices.elements()),
        "environment": shared,
        "sweep": dict(sweep) if sweep else None,
    }


def values(merged: Any) -> list[Any]:
    """Return the distinct values of a merged entry, empty if no run knew it."""
    if isinstance(merged, dict) and merged.keys() == {"values"}:
        found = merged["values"]
        return list(found) if isinstance(found, list) else [merged]
    return [] if merged is None else [merged]


def read_environment(path: Path) -> dict[str, Any]:
    """Read environment.json; ConfigError when it is missing or no JSON object."""
    try:
        environment = read_json(path)
        if not isinstance(environment, dict):
            raise ValueError(f"it holds a {type(environment).__name__}")
        for name, kind in _KINDS.items():
            if not isinstance(environment.get(name), kind | None):
                raise ValueError(f"{name} in it is no {kind.__name__}")
        StudyRecord.of(environment.get("sweep") or {})
    except (OSError, ValueError) as problem:
        why = getattr(problem, "strerror", None) or problem
        wrong, do = f"is missing or no JSON object ({why})", "restore it from version control"
        allowed = "the file that the report wrote next to runs.csv"
        raise ConfigError("environment.json", path, wrong, allowed, do) from problem
    return environment


def _merge(found: Iterable[Any]) -> Any:
    distinct = {json.dumps(value, sort_keys=True): value for value in found if value is not None}
    if len(distinct) < 2:
        return next(iter(distinct.values()), None)
    return {"values": list(distinct.values())}
