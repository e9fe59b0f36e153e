"""The schema of the configuration: every key of both commands, looked up by name."""

from __future__ import annotations

import ast
import functools
import inspect
from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, get_args

from msgspec import NODEFAULT
from msgspec.structs import fields

from ninefold.config.keys import CommandKeys, EvaluateKeys, Groups, SweepKeys, TrainKeys
from ninefold.files import flat, read_text
from ninefold.types import Section, spelled

Tree = dict[str, Any]

ABSENT = "absent"  # the value of a key that a job lacks
BY_OPTION = NODEFAULT  # the default of a key that has one in each option


@dataclass(frozen=True)
class Key:
    """One key of the configuration.

    kind: the type of its values, see ninefold.types.
    default: its value in conf/, None for a section, or BY_OPTION.
    sentence: returns its sentence for users.
    """

    kind: Any
    default: Any
    sentence: Callable[[], str]
    is_section: bool = False

    @property
    def meaning(self) -> str:
        """Its sentence for users."""
        return self.sentence()

    @property
    def marks(self) -> tuple[Any, ...]:
        """What holds for it and all keys below it: MAY_CHANGE, NO_EFFECT."""
        return get_args(self.kind)


def keys_of(section: type[Section], prefix: str = "") -> dict[str, Key]:
    """The keys that a section declares, and those of the sections in it, as `checkpoint.keep`."""
    found: dict[str, Key] = {}
    for field in fields(section):
        kind = (get_args(field.type) or (field.type,))[0]
        inner = kind if isinstance(kind, type) and issubclass(kind, Section) else None
        default = field.default if field.default_factory is NODEFAULT else field.default_factory()
        found[f"{prefix}{field.name}"] = Key(
            kind=field.type,
            default=None if inner else default,
            sentence=functools.partial(_sentence, inner or section, "" if inner else field.name),
            is_section=inner is not None,
        )
        if inner:
            found |= keys_of(inner, f"{field.name}.")
    return found


def _sentence(section: type[Section], field: str) -> str:
    """The sentence of a field of a section, or of a section it inherits from; "": its own."""
    places = (
        _sentences(inspect.getfile(each)).get((each.__name__, field))
        for each in section.__mro__
        if issubclass(each, Section)
    )
    return next(filter(None, places), "")


@functools.cache
def _sentences(path: str) -> dict[tuple[str, str], str]:
    """The sentences of the classes in a file and of their fields, by both names; "": its own.

    Python itself keeps no docstrings of fields.
    """
    found: dict[tuple[str, str], str] = {}
    for node in ast.parse(read_text(path)).body:
        if isinstance(node, ast.ClassDef):
            found[node.name, ""] = ast.get_docstring(node) or ""
            for each in pairwise(node.body):
                match each:
                    case ast.AnnAssign(target), ast.Expr(ast.Constant(str(text))):
                        found[node.name, ast.unparse(target)] = " ".join(text.split())
    return found


TRAIN, EVALUATE = keys_of(TrainKeys), keys_of(EvaluateKeys)
COMMAND, SWEEP = keys_of(CommandKeys), keys_of(SweepKeys)
_OF_GROUPS = keys_of(Groups)
GROUPS = {name: key for name, key in _OF_GROUPS.items() if key.is_section}
OPTIONS = {name: key for name, key in _OF_GROUPS.items() if not key.is_section}
KEYS: dict[str, Key] = {**EVALUATE, **TRAIN, **COMMAND, **SWEEP, **GROUPS, **OPTIONS}
BUILT = tuple(group for group in GROUPS if f"{group}._target_" in OPTIONS)  # one object each


def own_keys(evaluates: bool) -> dict[str, Key]:
    """The keys that a run has."""
    return EVALUATE if evaluates else TRAIN


def of_command(command: str) -> dict[str, Key]:
    """The keys of the command train or evaluate: a run's, and those that no run has."""
    return EVALUATE if command == "evaluate" else {**TRAIN, **COMMAND, **SWEEP}


def defaults(command: str) -> Tree:
    """The keys of a command with their defaults, which conf/COMMAND.yaml takes by name."""
    found: Tree = {}
    for name, key in of_command(command).items():
        section, _, last = name.rpartition(".")
        (found[section] if section else found)[last] = {} if key.is_section else key.default
    return found


def top_level(evaluates: bool) -> set[str]:
    """The names at the top of a job: keys, sections and groups."""
    return {name for name in own_keys(evaluates) if "." not in name} | GROUPS.keys()


def in_sections(evaluates: bool) -> dict[str, set[str]]:
    """The keys in each section, those that no run has included."""
    tree = defaults("evaluate" if evaluates else "train")
    return {name: {*keys} for name, keys in tree.items() if isinstance(keys, dict)}


def required(evaluates: bool) -> list[str]:
    """The keys that a job cannot do without."""
    of_groups = ["parallel.processes", "parallel.max_processes"]
    if not evaluates:  # an evaluation takes its groups from the checkpoint
        of_groups += GROUPS
        of_groups += [f"{group}._target_" for group in BUILT]
        of_groups += ["model.net"]
    return [*own_keys(evaluates), *of_groups]


def differences(before: Tree, now: Tree, ignored: tuple[str, ...]) -> list[str]:
    """How two jobs differ, as `key=now (was before)`, but for `ignored` keys and those below."""
    theirs, ours = flat(before), flat(now)
    return [
        f"{key}={spelled(ours.get(key, ABSENT))} (was {spelled(theirs.get(key, ABSENT))})"
        for key in {**ours, **theirs}
        if ours.get(key, ABSENT) != theirs.get(key, ABSENT) and not is_any_of(key, ignored)
    ]


def is_any_of(name: str, prefixes: tuple[str, ...]) -> bool:
    """Whether `name` is one of `prefixes` or below one."""
    return any(name == prefix or name.startswith(f"{prefix}.") for prefix in prefixes)
