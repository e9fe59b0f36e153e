"""manifest.json: the sha256 that each checkpoint of a folder must have."""

from __future__ import annotations

import json
import re
import stat
from pathlib import Path
from typing import Any

from ninefold.files import write_json

FILE = "manifest.json"
FORMAT = 2  # older ones are still read
NAME = re.compile(r"[A-Za-z0-9_-][A-Za-z0-9._-]{0,63}")  # of a file that may be listed
FIELDS = {"sha256": str, "size": int, "step": int}  # of an entry
LONGEST = 1 << 24  # bytes

# For each file name the entries it may have, newest first: one, or two while it is replaced.
Entry = dict[str, Any]
Files = dict[str, list[Entry]]


def has_checkpoint(run: Path) -> bool:
    """Whether a checkpoint of the run in folder `run` has ever been written."""
    return (run / "checkpoints" / FILE).exists()


def write(folder: Path, files: Files) -> None:
    write_json(folder / FILE, {"format": FORMAT, "files": files})


def read(folder: Path) -> Files:
    """The entries of the folder's manifest, without malformed ones: the file may be foreign.

    Raises OSError if there is one that cannot be read.
    """
    path = folder / FILE
    try:
        if not stat.S_ISREG(path.stat().st_mode):
            return {}
    except FileNotFoundError:
        return {}
    with path.open("rb") as file:
        data = file.read(LONGEST)
    try:
        content = json.loads(data)
    except (ValueError, RecursionError):
        return {}
    if not isinstance(content, dict) or content.get("format") not in range(1, FORMAT + 1):
        return {}
    files = content.get("files")
    listed = {
        name: [entry for found in entries if (entry := _entry(found))]
        for name, entries in (files.items() if isinstance(files, dict) else ())
        if NAME.fullmatch(name) and isinstance(entries, list)
    }
    return {name: entries for name, entries in listed.items() if entries}


def _entry(found: Any) -> Entry | None:
    if not isinstance(found, dict):
        return None
    entry = {key: found.get(key) for key in FIELDS}
    return entry if all(type(entry[key]) is FIELDS[key] for key in FIELDS) else None


def sums(files: Files, name: str) -> set[str]:
    """The sha256 accepted for file `name`: two while a checkpoint replaces another."""
    return {entry["sha256"] for entry in files.get(name, [])}


def newest_first(files: Files) -> list[tuple[str, str]]:
    """The names, each with a sha256 it may have, in the order in which to try them.

    last.pt is good with either of two entries; best.pt may then be far behind.
    """
    order = [
        (name == "last.pt", entry["step"], name, entry["sha256"])
        for name, entries in files.items()
        for entry in entries
    ]
    return [(name, sha256) for *_, name, sha256 in sorted(order, reverse=True)]
