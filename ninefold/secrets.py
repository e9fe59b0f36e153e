"""Removes values that a job read from the environment from all text that leaves a process.

A configuration may say `${oc.env:NAME}`. Its frozen form keeps those words, but whatever goes
wrong with the value may quote it. What was read is noted here, and its reference put in its place
wherever text leaves a process: in failures, logs, results, evaluations and reports.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping
from typing import Any

# Shorter values, and short numbers, appear in many lines by chance: replacing `1` or `64` would
# garble the text and hide nothing. Numbers, and what is shorter than these, are replaced as words.
SHORTEST, SHORTEST_NUMBER = 4, 8
# Words of our own that a value may happen to be. With USER=root every `dataset.root` would go.
WORDS = frozenset({
    "auto", "cpu", "cuda", "true", "false", "null", "none", "root", "train", "test", "error",
    "float16", "float32", "bfloat16", "channels_last", "channels_last_3d", "contiguous_format",
})  # fmt: skip

_KNOWN: dict[str, str] = {}
_NUMBER = re.compile(r"[-+]?[\d.]+(e[-+]?\d+)?", re.IGNORECASE)


def note(name: str, value: str) -> None:
    """Redact `value`, that of the environment variable `name`, from now on."""
    for form in _forms(value):
        _KNOWN[form] = "${oc.env:" + name + "}"


def redact(text: str) -> str:
    """Replace each registered value in `text` by `${oc.env:NAME}`."""
    if not _KNOWN:
        return text
    # In one pass, longest first: a value must not be looked for in another's reference.
    pattern = "|".join(map(_pattern, sorted(_KNOWN, key=len, reverse=True)))
    return re.sub(pattern, lambda found: _KNOWN[found[0]], text)


def redacted(tree: Any) -> Any:
    """Redact all strings of a JSON value, except keys that Ninefold defines."""
    if isinstance(tree, str):
        return redact(tree)
    if isinstance(tree, Mapping):
        return {key: redacted(value) for key, value in tree.items()}
    if isinstance(tree, list | tuple):
        return [redacted(value) for value in tree]
    return tree


def _forms(value: str) -> Iterator[str]:
    """The forms of `value` to redact: plain, quoted, for a shell, on one line, a path, lines."""
    least = SHORTEST_NUMBER if _NUMBER.fullmatch(value) else SHORTEST
    if len(value) < least or value.lower() in WORDS:
        return
    in_a_shell = value.replace("'", "'\"'\"'")  # as shlex quotes it
    forms = [value, repr(value)[1:-1], in_a_shell, " ".join(value.split())]
    if value.strip("./~"):  # dots alone lead to folders that everything here is in
        path = os.path.expanduser(value)
        forms += [os.path.normpath(path), os.path.abspath(path)]
    yield from (form for form in forms if len(form) >= least)
    if "\n" in value:
        for line in value.splitlines():
            yield from _forms(line.strip())


def _pattern(form: str) -> str:
    plain, alone = re.escape(form), _NUMBER.fullmatch(form) or len(form) < SHORTEST_NUMBER
    return rf"(?<![\w.]){plain}(?!\w|\.\w)" if alone else plain
