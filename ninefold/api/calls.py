"""A training step as a function that can be called again and again; imports no torch by itself."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable, Generator, Iterator
from typing import Any

from ninefold.errors import ConfigError

Step = Callable[[], Any] | Generator[Any, None, Any]


def repeat(call: Callable[[], Any], times: int) -> None:
    for _ in range(times):
        call()


def as_function(name: str, step: object) -> Callable[[], Any]:
    """A step as a function without arguments. Raises ConfigError, at its first call too."""
    field = f"steps[{name!r}]"
    if inspect.isgenerator(step):
        return lambda: advance(field, step)
    torch = sys.modules.get("torch")
    if torch is not None and isinstance(step, torch.nn.Module):
        raise ConfigError(
            field,
            type(step).__name__,
            "a module is no training step; a function without arguments that takes one, or a "
            "generator that yields after each; write a function that calls it",
        )
    if inspect.isgeneratorfunction(step) or not callable(step):
        raise ConfigError(
            field,
            getattr(step, "__name__", type(step).__name__),
            "it is neither a function that takes a step nor a generator that yields after each; "
            "a generator function has to be called; write NAME() for NAME",
        )
    function: Callable[[], Any] = step
    checked = False

    def call() -> None:
        nonlocal checked
        found = function()
        if not checked:
            checked = True
            check_returned(field, found)

    return call


def advance(field: str, step: Iterator[Any]) -> None:
    """Let a generator take a step."""
    for _ in step:
        return
    raise ConfigError(
        field,
        "generator",
        "it has ended; steps take turns until the time is up; let it loop without an end",
    )


def check_returned(field: str, found: object) -> None:
    """Raise ConfigError if a step returned something that has yet to be run."""
    if inspect.isgenerator(found) or inspect.iscoroutine(found):
        found.close()
        raise ConfigError(
            field,
            type(found).__name__,
            "calling it takes no step, but makes something that would; a function that takes one, "
            "or the generator itself; call it first",
        )


def note(error: BaseException, text: str) -> None:
    """Add a note to an exception, which Python shows below it (from 3.11 on)."""
    if hasattr(error, "add_note"):
        error.add_note(text)
    else:
        error.__notes__ = [*getattr(error, "__notes__", []), text]
