"""Where the answer of a bench is written as data: a regular file, or stdout."""

from __future__ import annotations

import json
import os
import tempfile
import time
from argparse import ArgumentTypeError
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from ninefold.errors import ConfigError
from ninefold.files import finite, require_regular, write_durably
from ninefold.waits import locked

STDOUT = Path("-")
DETAILS = "details.md"  # in the folder of the commands' output


def named(text: str) -> Path:
    """The path that an option names."""
    if not text.strip():
        raise ArgumentTypeError("a file needs a name")
    return Path(text)


def read_again(text: str) -> Path:
    """The same of a file that is read, too."""
    if named(text) == STDOUT:
        raise ArgumentTypeError("- is stdout, which cannot be read: name a file")
    return Path(text)


def require_writable(option: str, path: Path) -> None:
    """Raise ConfigError unless `path` is stdout, a regular file or a new one.

    A file is replaced by a new one: that would take away a device, a FIFO or a symbolic link.
    """
    if path != STDOUT and (wrong := fault(path)):
        kinds = "a regular file, a new one in a folder that is there, and - for stdout are allowed"
        raise ConfigError(option, path, wrong, kinds, "name one")


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


@contextmanager
def own_folder(named: Path | None) -> Iterator[Path]:
    """A folder that is of this bench alone while the block runs: new, or the one that is named.

    Git ignores what is in a new one. Raises ConfigError for one with files, or of another bench;
    OSError. One that stays empty is removed.
    """
    keep, new = made(named)
    descriptor = os.open(keep, os.O_RDONLY | os.O_DIRECTORY)
    try:
        ours = locked(descriptor)
        if not ours or any(keep.iterdir()):
            wrong = "it is not empty" if ours else "another bench writes into it"
            raise ConfigError("--keep", keep, wrong, "a new folder is needed", "name another")
        ignored = keep / ".gitignore"
        try:
            if named is None:
                write_durably(ignored, b"*\n")
            yield keep
        finally:
            with suppress(OSError):
                if [*keep.iterdir()] == [ignored]:
                    ignored.unlink()
                for folder in new:
                    folder.rmdir()
    finally:
        os.close(descriptor)


def made(named: Path | None) -> tuple[Path, list[Path]]:
    """A folder that is there now, and those that were not there before, the innermost first."""
    keep = (named or Path("bench", time.strftime("%Y-%m-%d_%H-%M-%S"))).absolute()
    new = [each for each in (keep, *keep.parents) if not each.exists()]
    try:
        keep.mkdir(parents=True, exist_ok=named is not None)
    except FileExistsError:
        if named:
            raise
        keep = keep.with_name(f"{keep.name}-{os.getpid()}")  # another bench began in this second
        new = [keep]
        keep.mkdir()
    return keep, new


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
