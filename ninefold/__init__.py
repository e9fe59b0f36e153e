"""Measure which parallel strategy and which precision to train with, and train with the answer."""

from __future__ import annotations

from importlib import import_module

from ninefold.places import EXTENSIONS

TYPE_CHECKING = False  # True for a type checker; typing itself is not imported for a name in it
if TYPE_CHECKING:
    from typing import Any

__path__.append(str(EXTENSIONS))

__version__ = "0.1.0"
# What programs call, and the module that has it: it is imported when it is asked for.
_PUBLIC = {
    "Answer": "ninefold.api.answer",
    "Times": "ninefold.api.times",
    "compare": "ninefold.api.compare",
    "time_steps": "ninefold.api.steps",
    "turns": "ninefold.api.turns",
}


def __getattr__(name: str) -> Any:
    if name not in _PUBLIC:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(_PUBLIC[name]), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *_PUBLIC})
