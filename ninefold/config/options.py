"""Finds the keys that an option's class declares, with their types, to check values before a run.

A key is a field with a type of ninefold.types and a docstring below it, before the first method.
Inherited fields and fields of other types are skipped: their values are not checked. The source is
parsed, not imported: a command that checks a configuration imports neither torch nor the module of
an option. Combinations that an option refuses are code, in a module of their own beside it.
"""

from __future__ import annotations

import ast
import functools
import re
from contextlib import suppress
from importlib.machinery import PathFinder
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from typing import Any

import msgspec

from ninefold import types
from ninefold.config.combinations import Combination
from ninefold.config.schema import BY_OPTION, GROUPS, KEYS, OPTIONS, Key, documented
from ninefold.errors import ConfigError, located
from ninefold.files import read_text
from ninefold.places import EXTENSIONS, option_files

# What a field's annotation may name; with any other name the field is skipped.
NAMES = {**vars(types), "types": types}
TYPED = r"\bninefold\.types\b|\bninefold import .*\btypes\b|\bmsgspec\b"  # in a module with such
# A class up to its first method: to parse whole modules takes 25 ms for all options.
FIELDS = r"(?m)^class {}\b[^:]*:.*\n(?:(?:    .*)?\n)*?(?=    def |    @|    async |\S|\Z)"


def find(field: str) -> Key | None:
    """The key `field`, also if only one option of its group in conf/ has it."""
    group, _, name = field.partition(".")
    return KEYS.get(field) or (of_group(group).get(name) if group in GROUPS else None)


def option_keys() -> dict[str, Key]:
    """Every key of every group: first what all of its options may have, then what some declare."""
    found: dict[str, Key] = {}
    for group in GROUPS:
        found |= {name: key for name, key in OPTIONS.items() if name.startswith(f"{group}.")}
        found |= {f"{group}.{name}": key for name, key in of_group(group).items()}
    return found


@functools.cache
def marked(mark: str) -> tuple[str, ...]:
    """The keys that carry `mark`, such as types.MAY_CHANGE; a section's mark is of its keys too."""
    return tuple(name for name, key in {**KEYS, **option_keys()}.items() if mark in key.marks)


@functools.cache
def of_group(group: str) -> dict[str, Key]:
    """The keys that only one option in conf/GROUP/ has, by their names in it."""
    found: dict[str, Key] = {}
    for path in option_files(group):
        if target := re.search(r"^_target_: (\S+)", read_text(path), re.MULTILINE):
            found |= of_class(target[1])
    return found


@functools.cache
def of_class(target: str) -> dict[str, Key]:
    """The keys that the class with the dotted name `target` declares.

    A field of a type that ninefold.types does not have is skipped: its values are not checked.
    """
    found: dict[str, Key] = {}
    for node in _classes(target, TYPED):
        for field, sentence in documented(node):
            with suppress(NameError, TypeError):
                kind = eval(ast.unparse(field.annotation), NAMES)
                msgspec.json.schema(kind)  # raises TypeError for a type that msgspec cannot check
                key = Key(kind, _constant(field.value), sentence.__str__)
                found[ast.unparse(field.target)] = key
    return found


@functools.cache
def declares(target: str, fact: str) -> bool:
    """Whether the class with the dotted name `target` has `fact: ClassVar[bool] = True` itself."""
    return any(
        ast.unparse(each) == f"{fact}: ClassVar[bool] = True"
        for node in _classes(target, fact)
        for each in node.body
    )


@functools.cache
def extra_of(target: str) -> str | None:
    """The package that our option with the dotted name `target` needs, which is no dependency.

    Its module says so, as `EXTRA = "mlflow"`: so are the package, its extra and the option called.
    """
    module = target.rpartition(".")[0]
    if not module.startswith("ninefold."):
        return None
    said = re.search(r'(?m)^EXTRA = "(\w+)"', _source(module))
    return said and said[1]


@functools.cache
def refused_by(target: str) -> tuple[Combination, ...]:
    """The combinations that an option refuses: `REFUSED` in NAME_combinations.py.

    That file is beside the module NAME that `target`, a dotted name in it, is defined in. It is
    run in the launcher, so it should import nothing but ninefold.config.combinations and
    ninefold.types. Raises ConfigError if it does not run.
    """
    if not types.accepts(types.Target, target):
        return ()
    module = f"{target.rpartition('.')[0]}_combinations"
    try:
        file = _file(module)
    except (OSError, ValueError):
        return ()
    spec = spec_from_file_location(module, file) if file else None
    if spec is None or spec.loader is None:
        return ()
    beside = module_from_spec(spec)
    try:
        spec.loader.exec_module(beside)
        return tuple(beside.REFUSED)
    except Exception as error:
        wrong = located(error, f"{type(error).__name__}: {error}")
        raise ConfigError(
            "_target_",
            target,
            f"the combinations that it refuses cannot be read; {wrong}; correct {file}",
        ) from error


def _classes(target: str, pattern: str) -> list[ast.ClassDef]:
    """Parse the class with this dotted name, up to its first method; [] if it is not found.

    Modules of others are parsed only if `pattern` is found in their text.
    """
    module, _, name = target.rpartition(".")
    if not types.accepts(types.Target, target):
        return []
    try:
        text = _source(module)
        ours = module.startswith("ninefold.") or re.search(pattern, text)
        found = re.search(FIELDS.format(name), text) if ours else None
        return [n for n in ast.parse(found[0]).body if isinstance(n, ast.ClassDef)] if found else []
    except (OSError, ValueError, SyntaxError):  # a user's: who builds the class tells of it
        return []


def _constant(default: ast.expr | None) -> Any:
    """The value of a field, BY_OPTION where it has none or one that has to be computed."""
    try:
        return BY_OPTION if default is None else ast.literal_eval(default)
    except ValueError:
        return BY_OPTION


def _source(module: str) -> str:
    """The text of a module, which is not imported; empty if it is not found. Raises OSError."""
    file = _file(module)
    return "" if file is None else read_text(file)


def _file(module: str) -> Path | None:
    """The file of a module, which is not imported; None if it is not found."""
    first, *rest = module.split(".")
    spec = PathFinder.find_spec(first)
    roots = [*((spec.submodule_search_locations if spec else None) or [])]
    if first == "ninefold":
        roots.append(str(EXTENSIONS))
    paths = [Path(root, *rest) for root in roots]
    files = [file for path in paths for file in (path.with_suffix(".py"), path / "__init__.py")]
    if spec and spec.origin and not rest:
        files.append(Path(spec.origin))
    return next((file for file in files if file.is_file()), None)
