"""The words of a command, overrides as typed: their keys, and values that Hydra reads as text."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterable, Sequence

SYNTAX = set("'\"[]{}(),\\$")  # of Hydra's values


def key_and_value(text: str) -> tuple[str, str]:
    """Return the key of an override, without the +, ++ or ~ before it, and its value as typed."""
    key, _, value = text.lstrip("+~").partition("=")
    return key, value


def key_of(text: str) -> str:
    """Return the key of an override, without the +, ++ or ~ before it."""
    return key_and_value(text)[0]


def as_value(text: str) -> str:
    """Return `text` as the value of an override."""
    return text if re.fullmatch(r"[\w./-]+", text, re.ASCII) else as_text(text)


def for_shell(key: str, value: object) -> str:
    """An override of a text, as a shell takes it."""
    return shlex.quote(f"{key}={as_value(str(value))}")


def as_text(text: str) -> str:
    """Return `text` as a value that nothing is read into."""
    return "'" + text.replace("'", "\\'") + "'"


def quoted(arguments: Iterable[str]) -> list[str]:
    """The arguments of a command, with quotes around values that Hydra's grammar cannot parse.

    It has no letters but those of ASCII outside quotes.
    """
    found = []
    for word in arguments:
        key, equals, value = word.partition("=")
        plain = bool(equals) and not word.startswith("-") and not SYNTAX & {*value}
        found.append(word if value.isascii() or not plain else f"{key}='{value}'")
    return found


def last_of_each(arguments: Sequence[str]) -> list[str]:
    """The arguments without values of keys that have another later: the last one wins.

    A mapping does not replace an option, to which it adds.
    """
    kept: dict[object, str] = {}
    for number, word in enumerate(arguments):
        before = arguments[number - 1] if number else ""
        of_flag = re.fullmatch(r"-[^=]+", before) and before not in ("-m", "--multirun")
        is_value = re.match(r"[\w./@]+=", word) and not of_flag
        name, _, value = word.partition("=")
        key = (name, value.startswith("{")) if is_value else number
        kept.pop(key, None)
        kept[key] = word
    return list(kept.values())
