"""The sha256 of what is written, of files, and of the folders of sharded checkpoints."""

from __future__ import annotations

import errno
import hashlib
import json
import stat
from collections.abc import Mapping
from pathlib import Path
from typing import Any, BinaryIO

import torch

from ninefold.checkpoint.manifest import Part
from ninefold.files import sha256_of

Listing = dict[str, Part]  # of each file of a folder


class Hashing:
    """A binary file that hashes what is written and remembers why a write failed; None measures."""

    def __init__(self, file: BinaryIO | None) -> None:
        self.sha256 = hashlib.sha256()
        self.written = 0
        self.error: OSError | None = None
        self._file = file

    def write(self, data: bytes | memoryview) -> int:
        if self._file is not None:
            try:
                self._file.write(data)
            except OSError as error:
                self.error = error
                raise
            self.sha256.update(data)
        size = memoryview(data).nbytes
        self.written += size
        return size

    def flush(self) -> None:
        if self._file is not None:
            self._file.flush()

    def save(self, content: Any) -> None:
        """torch.save `content`. Raises OSError, of which torch hides the system's reason."""
        try:
            torch.save(content, self)  # type: ignore[arg-type]
        except RuntimeError:
            if self.error is not None:
                raise self.error from None
            raise


def read_back(path: Path, file: Hashing) -> Part:
    """The size and sha256 of `path`, which `file` wrote. Raises OSError if it holds another."""
    written = file.sha256.hexdigest()
    if sha256_of(path) != written:
        raise OSError(errno.EIO, "what was read back differs from what was written")
    return {"sha256": written, "size": file.written}


def listing(folder: Path) -> Listing:
    """The files in `folder`. Raises OSError if one cannot be read, or something else is in it."""
    found: Listing = {}
    for path in sorted(folder.iterdir()):
        facts = path.lstat()
        if not stat.S_ISREG(facts.st_mode):
            raise FileNotFoundError(f"{path.name} is no file")
        found[path.name] = {"size": facts.st_size, "sha256": sha256_of(path)}
    return found


def digest_of(files: Mapping[str, Any]) -> str:
    """The sha256 of a listing, which is that of its folder."""
    return hashlib.sha256(json.dumps(files, sort_keys=True).encode()).hexdigest()


def digest(path: Path) -> str | None:
    """The sha256 of a checkpoint, a file or a folder, or None if there is none that can be read."""
    try:
        if path.is_dir():
            return digest_of(listing(path))
        return sha256_of(path) if path.is_file() else None
    except OSError:
        return None
