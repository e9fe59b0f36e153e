"""Parameters that a loss or another function keeps, which no optimizer of a run would train."""

from __future__ import annotations

import dis
import sys
from collections.abc import Iterator, Mapping
from functools import partial
from types import CodeType, FunctionType, MethodType
from typing import Any

from torch import Tensor, nn

from ninefold.errors import is_users

MAX_DEPTH = 32  # of objects, one in the other
GLOBAL = {"LOAD_GLOBAL", "LOAD_NAME"}


def trained_in(built: object) -> list[str]:
    """Return the names of what requires a gradient in a module, or in what a function keeps.

    A function keeps the variables of its closure, its defaults, and the globals that its code
    names; a method its object; and each what the functions of the user's among these keep.
    """
    return [*dict.fromkeys(_names(built, "", set(), _file(built)))]


def _names(value: object, name: str, seen: set[int], file: str | None) -> Iterator[str]:
    """file: of the code that was given, whose functions are looked into wherever it is."""
    if id(value) in seen or name.count(".") > MAX_DEPTH:
        return
    seen.add(id(value))
    if isinstance(value, Tensor):
        if value.requires_grad and value.is_leaf:
            yield name
    elif isinstance(value, nn.Module):
        inner = [n for n, parameter in value.named_parameters() if parameter.requires_grad]
        yield from (f"{name}.{each}".lstrip(".") for each in inner)
    else:
        for key, held in _held(value, file, given=not name):
            yield from _names(held, f"{name}.{key}".lstrip("."), seen, file)


def _held(value: object, file: str | None, given: bool) -> Iterator[tuple[str, Any]]:
    """What `value` holds, with names. given: whether it is the object that was asked for."""
    if isinstance(value, Mapping):
        yield from ((str(key), each) for key, each in value.items())
    elif isinstance(value, list | tuple):
        yield from ((str(number), each) for number, each in enumerate(value))
    elif isinstance(value, partial):
        yield from (("func", value.func), ("args", value.args), *value.keywords.items())
    elif isinstance(value, MethodType):
        owner = value.__self__
        held = owner if isinstance(owner, nn.Module) else getattr(owner, "__dict__", {})
        yield from (("self", held), (value.__name__, value.__func__))
    elif isinstance(value, FunctionType):
        code = value.__code__
        if given or code.co_filename == file or is_users(code.co_filename):
            yield from _variables(value)
    elif (given or _is_users_own(value, file)) and not isinstance(value, type):
        yield from vars(value).items() if hasattr(value, "__dict__") else ()
        yield "__call__", getattr(type(value), "__call__", None)  # noqa: B004


def _is_users_own(value: object, file: str | None) -> bool:
    """Whether the class of an object is the user's: it may keep modules, as a trainer does."""
    module = sys.modules.get(type(value).__module__)
    where = getattr(module, "__file__", None)
    return where is not None and (where == file or is_users(where))


def _variables(function: FunctionType) -> Iterator[tuple[str, Any]]:
    """The variables that a function keeps: of its closure, defaults, and the globals it names."""
    code = function.__code__
    for name, cell in zip(code.co_freevars, function.__closure__ or (), strict=True):
        try:
            yield name, cell.cell_contents
        except ValueError:  # it is not set yet
            continue
    defaults = function.__defaults__ or ()
    named = code.co_varnames[: code.co_argcount]
    yield from zip(named[len(named) - len(defaults) :], defaults, strict=True)
    yield from (function.__kwdefaults__ or {}).items()
    known = function.__globals__
    yield from ((name, known[name]) for name in _globals(code) if name in known)


def _globals(code: CodeType) -> Iterator[str]:
    """The globals that code names, in functions that it defines too."""
    for step in dis.get_instructions(code):
        if step.opname in GLOBAL:
            yield str(step.argval)
    for inner in code.co_consts:
        if isinstance(inner, CodeType):
            yield from _globals(inner)


def _file(built: object) -> str | None:
    inner = built
    while isinstance(inner, partial):
        inner = inner.func
    code = getattr(inner, "__code__", None)
    return code.co_filename if isinstance(code, CodeType) else None
