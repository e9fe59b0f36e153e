"""The words of a command, overrides as typed: their keys, and values that Hydra reads as text."""

from __future__ import annotations

import re


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


def as_text(text: str) -> str:
    """Return `text` as a value that nothing is read into."""
    return "'" + text.replace("'", "\\'") + "'"
