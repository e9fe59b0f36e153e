"""How error lines spell values, and which known name is nearest to a mistyped one."""

from __future__ import annotations

import difflib
from collections.abc import Iterable
from typing import Any


def spelled(value: Any) -> Any:
    """`value` as spelled in YAML and on the command line."""
    if value is None or isinstance(value, bool):
        return "null" if value is None else str(value).lower()
    if isinstance(value, list):
        return f"[{', '.join(str(spelled(each)) for each in value)}]"
    return value


def nearest(word: str, options: Iterable[str]) -> str:
    """Advice for a `word` that is not in `options`: the nearest one."""
    near = suggestion(word, options)
    return near if near.startswith("did you mean") else "name one of them"


def suggestion(word: str, known: Iterable[str]) -> str:
    """The names in `known` that resemble `word`, or all of them."""
    names = sorted(known)
    near = difflib.get_close_matches(word, names, n=3, cutoff=0.6)
    return f"did you mean {' or '.join(near)}?" if near else f"known are {', '.join(names)}"
