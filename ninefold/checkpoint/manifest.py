"""manifest.json: the sha256 that each checkpoint of a folder must have."""

from __future__ import annotations

import os
import re
from contextlib import suppress
from pathlib import Path
from typing import NotRequired, TypedDict

import msgspec

from ninefold.errors import CheckpointError
from ninefold.extensions import SHARDED
from ninefold.files import read_json, write_json

FILE = "manifest.json"
FORMAT = 2
NAME = re.compile(r"[A-Za-z0-9_-][A-Za-z0-9._-]{0,63}")  # of a file that may be listed
WHOLE = ".pt"  # the ending of a checkpoint that is a file; SHARDED: a folder, by all ranks
NEW = f".new{WHOLE}"  # a checkpoint that is being written


class Part(TypedDict):
    """What a file must be."""

    sha256: str
    size: int


class Entry(Part):
    """A checkpoint; of a folder, `files` are those in it."""

    step: int
    files: NotRequired[dict[str, Part]]


# For each file name the entries it may have, newest first: one, or two while it is replaced.
Files = dict[str, list[Entry]]


def has_checkpoint(run: Path) -> bool:
    """Whether there is a checkpoint of the run in folder `run`, good or not."""
    return bool(names(run / "checkpoints"))


def names(checkpoints: Path) -> list[str]:
    """The names of the checkpoints in the folder, whether they are good or not."""
    found = (path.name for path in checkpoints.glob("[!.]*"))
    return sorted(name for name in found if name.endswith((WHOLE, SHARDED)))


def is_checkpoint(path: Path) -> bool:
    """Whether there is a file or, of a sharded checkpoint, a folder of this name.

    A name that no file can have, as one that is too long, is an error for a Path.
    """
    return os.path.isdir(path) if path.suffix == SHARDED else os.path.isfile(path)


def named(path: Path, which: str = "last") -> Path:
    """The checkpoint at `path`; in a run folder the one called `which`, of either format."""
    if not os.path.isdir(path) or path.suffix == SHARDED:
        return path
    folder, files = path / "checkpoints", {}
    with suppress(OSError):
        files = read(folder)
    found = [p for end in (WHOLE, SHARDED) if is_checkpoint(p := folder / f"{which}{end}")]

    def step(file: Path) -> int:
        return max((entry["step"] for entry in files.get(file.name, [])), default=-1)

    return max(found, key=step, default=folder / f"{which}{WHOLE}")


def required(field: str, given: object, which: str = "last") -> Path:
    """The checkpoint that `field`=`given` names: of a run folder `which`, or a file.

    Raises CheckpointError if there is none.
    """
    file = named(Path(os.path.expanduser(str(given))).absolute(), which)
    if not is_checkpoint(file):
        raise CheckpointError(
            field, given, "no such checkpoint", f"looked for {file}", "name a run folder or a file"
        )
    return file


def write(folder: Path, files: Files) -> None:
    write_json(folder / FILE, {"format": FORMAT, "files": files})


def read(folder: Path) -> Files:
    """The entries of the folder's manifest, without malformed ones: the file may be foreign.

    Raises OSError if there is one that cannot be read.
    """
    path = folder / FILE
    if not path.is_file():
        return {}
    try:
        content = read_json(path)
    except ValueError:
        return {}
    if not isinstance(content, dict) or content.get("format") != FORMAT:
        return {}
    files = content.get("files")
    listed = {
        name: [entry for found in entries if (entry := _entry(found))]
        for name, entries in (files.items() if isinstance(files, dict) else ())
        if NAME.fullmatch(name) and isinstance(entries, list)
    }
    return {name: entries for name, entries in listed.items() if entries}


def _entry(found: object) -> Entry | None:
    with suppress(msgspec.ValidationError):
        return msgspec.convert(found, Entry)
    return None


def sums(files: Files, name: str) -> set[str]:
    """The sha256 accepted for file `name`: two while a checkpoint replaces another."""
    return {entry["sha256"] for entry in files.get(name, [])}


def newest_first(files: Files) -> list[tuple[str, str]]:
    """The names, each with a sha256 it may have, in the order in which to try them.

    last.pt is good with either of two entries; best.pt may then be far behind.
    """
    order = [
        (name in (f"last{WHOLE}", f"last{SHARDED}"), entry["step"], name, entry["sha256"])
        for name, entries in files.items()
        for entry in entries
    ]
    return [(name, sha256) for *_, name, sha256 in sorted(order, reverse=True)]
