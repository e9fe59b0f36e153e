"""The schema of the configuration: every key of both commands, looked up by name."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from ninefold.config.command_keys import NOT_OF_A_RUN
from ninefold.config.group_keys import BUILT, GROUPS, OPTIONS
from ninefold.config.keys import EVALUATE, TRAIN, Key
from ninefold.config.kinds import SECTION

KEYS: dict[str, Key] = {**EVALUATE, **TRAIN, **NOT_OF_A_RUN, **GROUPS, **OPTIONS}
# Prefixes of keys with which a run may be resumed although they differ from the stored run's.
MAY_CHANGE = tuple(name for name, key in KEYS.items() if key.may_change)
# Prefixes of keys that change no figure of a run.
WITHOUT_EFFECT = tuple(name for name, key in KEYS.items() if not key.affects_results)
ADDED_LATER = {name: key.default for name, key in KEYS.items() if key.later}


def own_keys(evaluates: bool) -> dict[str, Key]:
    """The keys that a run has: in conf/evaluate.yaml, or in conf/train.yaml with others."""
    return EVALUATE if evaluates else TRAIN


def top_level(evaluates: bool) -> set[str]:
    """The names at the top of a job: keys, sections and groups."""
    return {name for name in own_keys(evaluates) if "." not in name} | GROUPS.keys()


def in_sections(evaluates: bool) -> dict[str, set[str]]:
    """The keys in each section, those that no run has included."""
    found: dict[str, set[str]] = {}
    for name, key in {**own_keys(evaluates), **({} if evaluates else NOT_OF_A_RUN)}.items():
        section, _, inner = name.rpartition(".")
        if key.kind is SECTION:
            found[name] = set()
        elif section:
            found[section].add(inner)
    return found


def required(evaluates: bool) -> list[str]:
    """The keys that a job cannot do without."""
    of_groups = ["parallel.processes", "parallel.max_processes"]
    if not evaluates:  # an evaluation takes its groups from the checkpoint
        of_groups += GROUPS
        of_groups += [f"{group}._target_" for group in BUILT]
        of_groups += [n for n, key in OPTIONS.items() if n.startswith("model.") and not key.later]
    return [*own_keys(evaluates), *of_groups]


def is_any_of(name: str, prefixes: tuple[str, ...]) -> bool:
    """Whether `name` is one of `prefixes` or below one."""
    return any(name == prefix or name.startswith(f"{prefix}.") for prefix in prefixes)


def completed(job: Mapping[str, Any]) -> dict[str, Any]:
    """A stored job with the defaults of the top-level keys that older jobs lack."""
    added = {name: ADDED_LATER[name] for name in TRAIN if name in ADDED_LATER and "." not in name}
    return {**added, **job}


def without_defaults(flat: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    """A flat job without newer keys that have their default.

    So that a job stored before a key was added equals the same job composed now.
    """
    for name, value in flat.items():
        if name not in ADDED_LATER or value != ADDED_LATER[name]:
            yield name, value
