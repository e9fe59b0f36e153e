"""Measure which parallel strategy and which precision to train with, and train with the answer."""

from typing import Any

__version__ = "0.1.0"

_IN = {  # the module of each public name, which is imported when the name is used
    "compare": "ninefold.api.compare",
    "Answer": "ninefold.api.answer",
}


def __getattr__(name: str) -> Any:
    if name not in _IN:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module(_IN[name]), name)


def __dir__() -> list[str]:
    return [*globals(), *_IN]
