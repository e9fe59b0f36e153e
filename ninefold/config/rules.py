"""Check a job against the schema before torch is imported or a process is started."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from contextlib import suppress
from typing import Any

import msgspec
import yaml

from ninefold.config import combinations, options
from ninefold.config.conf_files import keys_in
from ninefold.config.schema import BUILT, GROUPS, KEYS, Key, in_sections
from ninefold.errors import ConfigError, Failure, suggestion
from ninefold.files import require_plain_yaml, safe_loader
from ninefold.places import option_files
from ninefold.types import Call, accepts, allowed, spelled, wrong

# A name that becomes part of a path or a table: no separators, no blanks, no leading dot.
NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._-]{0,63}")
# Keys whose values are called, by Hydra and by logging.config.dictConfig: a report, which may be
# anybody's, chooses nothing that is called.
CALLED = ("_target_", "()", "class")
SWEEP_SECTIONS = ("study", "report")  # sections that no run has
COMMAND_SECTIONS = (*SWEEP_SECTIONS, "trust", "like")  # what no run has
SECTIONS = [name for name, key in KEYS.items() if key.is_section and name not in GROUPS]


def problems(
    job: Mapping[str, Any],
    known: Iterable[str],
    inner: Mapping[str, Iterable[str]] | None = None,
    required: Iterable[str] = (),
) -> list[Failure]:
    """The problems of `job`, a resolved configuration; of combinations only if it has no others.

    known: its allowed top-level keys.
    inner: allowed keys by section and group, of those whose keys are known.
    required: keys that it must have, such as `checkpoint.keep`.
    """
    known, inner = set(known), inner or {}
    found = _unknown(job, known)
    for section, keys in inner.items():
        if isinstance(job.get(section), Mapping):
            found += _unknown(job[section], set(keys), f"{section}.")
    for name in SECTIONS:
        if name in job and not isinstance(node := job[name], Mapping):
            said = ("not a section", f"{name}.NAME=value is allowed", f"leave {name} whole")
            found.append(ConfigError(name, spelled(node), *said))
    found += [_missing(key) for key in required if _lacks(job, key)]
    loggers = job.get("logger")
    for name, node in loggers.items() if isinstance(loggers, Mapping) else ():
        if not accepts(Call, node):
            place, do = f"logger.{name}", f"take it away with ~logger.{name}"
            found.append(ConfigError(place, spelled(node), "not allowed", allowed(Call), do))
    keys, refused = {**KEYS}, [*combinations.REFUSED]
    for group in BUILT:
        if isinstance(node := job.get(group), Mapping) and "_target_" in node:
            own = options.of_class(str(node["_target_"]))
            keys |= {f"{group}.{name}": key for name, key in own.items()}
            refused += options.refused_by(str(node["_target_"]))
    for field, key in keys.items():
        section, _, name = field.rpartition(".")
        node = job.get(section) if section else job
        if isinstance(node, Mapping) and name in node and not key.is_section:
            found += _breach(field, key, node[name])
    return found or combinations.problems(job, refused)


def breach(field: str, value: Any) -> list[Failure]:
    """A failure if the key `field` does not accept `value`; unknown keys accept any value."""
    key = options.find(field)
    return [] if key is None or key.is_section else _breach(field, key, value)


def _breach(field: str, key: Key, value: Any) -> list[Failure]:
    refers = isinstance(value, str) and "${" in value  # to a checkpoint's configuration
    if refers or accepts(key.kind, value):
        return []
    said = (wrong(key.kind), allowed(key.kind), f"correct {field}")
    return [ConfigError(field, spelled(value), *said)]


def typed(field: str, text: str) -> Any:
    """The value of a key as a command has it in `text`, which anybody may have written.

    Raises ValueError if there is no such key, or it does not accept the value.
    """
    key = options.find(field)
    with suppress(yaml.YAMLError, msgspec.ValidationError):
        require_plain_yaml(text)
        value = msgspec.convert(yaml.load(text, safe_loader()), key and key.kind, strict=False)
        if key is not None and accepts(key.kind, value):
            return value
    raise ValueError(f"not a value of {field}")


def inner_keys(choices: Mapping[str, Any], evaluates: bool) -> dict[str, set[str]]:
    """The keys of the sections, and of the groups whose chosen option is a file in conf/."""
    found = in_sections(evaluates)
    for group in ("parallel", "amp", "dataset", "model", "task"):
        if (keys := keys_in(group, str(choices.get(group)))) is not None:
            found[group] = {*keys}
    return found


def _unknown(node: Mapping[str, Any], known: set[str], prefix: str = "") -> list[Failure]:
    wrong, do = "no such key", "remove it or correct its name"
    return [
        ConfigError(f"{prefix}{key}", spelled(value), wrong, suggestion(str(key), known), do)
        for key, value in node.items()
        if key not in known
    ]


def _missing(key: str) -> ConfigError:
    """The failure of a job without a key, or without a section for a group of options."""
    if key not in GROUPS:
        do = f"do not take {key} away"
        return ConfigError(key, "nothing", "it is missing", "a run needs it", do)
    ours = [path.stem for path in option_files(key)]
    neither = "it has neither an option nor a section of its own"
    either = f"{', '.join(ours)} are allowed, or null beside a section {key}"
    do = f"name one, in a yaml as override /{key}: {ours[0]}"
    return ConfigError(key, "nothing", neither, either, do)


def _lacks(job: Mapping[str, Any], field: str) -> bool:
    """Whether `job` has the section of `field` and no such key in it."""
    group, _, key = field.rpartition(".")
    node = job.get(group) if group else job
    return isinstance(node, Mapping) and key not in node
