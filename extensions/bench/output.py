"""Where the answer of a bench is written as data: a regular file, or stdout."""

from __future__ import annotations

import json
import os
import tempfile
from argparse import ArgumentTypeError
from contextlib import suppress
from pathlib import Path
from typing import Any

from ninefold.errors import ConfigError
from ninefold.files import finite, require_regular, write_durably

STDOUT = Path("-")


def named(text: str) -> Path:
    """The path that an option names."""
    if not text.strip():
        raise ArgumentTypeError("a file needs a name")
    return Path(text)


def require_writable(option: str, path: Path) -> None:
    """Raise ConfigError unless `path` is stdout, a regular file or a new one.

    A file is replaced by a new one: that would take away a device, a FIFO or a symbolic link.
    """
    if path != STDOUT and (wrong := fault(path)):
        raise ConfigError(
            option,
            path,
            f"{wrong}; a regular file, a new one in a folder that is there, and - for stdout are "
            "allowed; name one",
        )


def fault(path: Path) -> str | None:
    """What keeps a file from being written."""
    try:
        for each in (path, path.with_name(f".{path.name}.tmp")) if path.name else (path,):
            with suppress(FileNotFoundError):
                require_regular(os.lstat(each), each)
    except OSError as error:
        return error.strerror
    folder = path.absolute().parent
    if not folder.is_dir():
        return "its folder is missing"
    try:
        with tempfile.TemporaryFile(dir=folder):
            pass
    except OSError:
        return "its folder cannot be written"
    return None if os.access(path, os.W_OK) or not path.exists() else "it cannot be written"


def write(option: str, path: Path, text: str) -> None:
    """Write a text to stdout, or to a file, whole. Raises ConfigError, OSError."""
    require_writable(option, path)  # it may have been replaced meanwhile
    if path == STDOUT:
        print(text, end="", flush=True)
    else:
        write_durably(path, text.encode())


def as_json(content: Any) -> str:
    """A text of JSON, without NaN and infinity, which it does not have."""
    return json.dumps(finite(content), indent=2, ensure_ascii=False, allow_nan=False) + "\n"
