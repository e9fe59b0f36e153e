"""The letters of a command's arguments and of its working directory, which Hydra may not take."""

from __future__ import annotations

import os
from collections.abc import Sequence

from ninefold.errors import ConfigError, Failure, ResourceError

SYNTAX = ("'", '"', "[", "]", "{", "}", "(", ")", ",", "\\", "$")  # of Hydra's values


def quoted(arguments: Sequence[str]) -> list[str]:
    """The arguments of a command, with quotes around values that need them for their letters.

    Hydra's grammar has no letters but those of ASCII outside quotes.
    """
    found = []
    for word in arguments:
        key, equals, value = word.partition("=")
        plain = not any(mark in value for mark in SYNTAX)
        needs = bool(equals) and not word.startswith("-") and not value.isascii()
        found.append(f"{key}='{value}'" if needs and plain else word)
    return found


def problems(arguments: Sequence[str]) -> list[Failure]:
    """Letters that Hydra or the files of a run cannot have in these arguments or the directory."""
    try:
        here = os.getcwd()
    except OSError as error:
        gone, do = "the working directory is gone", "cd to another"
        return [ResourceError("directory", "?", f"{gone}; {error.strerror or ''}; {do}")]
    for field, text in (("directory", here), *(("arguments", word) for word in arguments)):
        try:
            text.encode()
        except UnicodeEncodeError:
            return [_undecoded(field, text)]
    return references("directory", here)


def references(field: str, path: str) -> list[Failure]:
    """A failure if a `path`, fully resolved, would be taken for a reference of OmegaConf's."""
    if "${" not in path:
        return []
    return [
        ConfigError(
            field,
            path,
            "its name holds ${; Hydra takes that for a reference, also in the path of a folder; "
            "choose or rename a folder so that it does not",
        )
    ]


def _undecoded(field: str, text: str) -> ConfigError:
    """The failure of a text that Python could not decode in this locale."""
    try:
        text, locale = os.fsencode(text).decode(), True
    except UnicodeDecodeError:
        text, locale = os.fsencode(text).decode(errors="replace"), False
    return ConfigError(
        field,
        text,
        "it cannot be decoded in this locale" if locale else "it is not UTF-8",
        "the files of a run are UTF-8",
        "set LC_ALL=C.UTF-8 or PYTHONUTF8=1" if locale else "rename it",
    )
