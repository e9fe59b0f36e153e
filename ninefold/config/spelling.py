"""How error lines spell values, and advise names."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from ninefold.errors import suggestion


def spelled(value: Any) -> Any:
    """`value` as spelled in YAML and on the command line."""
    if value is None or isinstance(value, bool):
        return "null" if value is None else str(value).lower()
    if isinstance(value, list):
        return f"[{', '.join(str(spelled(each)) for each in value)}]"
    return value


def nearest(word: str, options: Iterable[str]) -> str:
    """Advice for a `word` that is not in `options`, which the line lists: the nearest one."""
    near = suggestion(word, options)
    return near if near.startswith("did you mean") else "name one of them"
