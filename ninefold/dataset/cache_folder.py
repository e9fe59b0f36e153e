"""A cache on disk: a folder of .npy files and meta.json, written whole or not at all."""

from __future__ import annotations

import json
import os
import shutil
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from ninefold.dataset.packing import CacheContent, refused, size_text
from ninefold.errors import ResourceError
from ninefold.files import (
    mount_of,
    opener,
    read_json,
    replace_durably,
    sync,
    write_durably,
)
from ninefold.process import locked, poll_until, unlock

META = "meta.json"
LEFT = 0.05  # share of the free space of a disk that stays free


def write(folder: Path, content: CacheContent, threads: int) -> None:
    """Write a cache unless an undamaged one exists, after waiting for a process that writes it.

    Raises what decoding raises, and ResourceError.
    """
    above = folder.parent
    try:
        above.mkdir(parents=True, exist_ok=True)
        _remove_abandoned(above)
        with _alone(folder, content.meta["source"]):
            if not folder.exists() or _warned(folder):
                _write(folder, content, threads)
    except OSError as error:
        raise refused(above, error) from error


def damage(folder: Path) -> str | None:
    """What is wrong with a cache on disk, by the sizes of its files; None if nothing is."""
    try:
        arrays = read_json(folder / META)["arrays"]
        for name, entry in arrays.items():
            size = (folder / name).stat().st_size
            if size != entry["bytes"]:
                return f"{name} has {size:,} bytes instead of {entry['bytes']:,}"
    except FileNotFoundError as error:
        return f"{Path(str(error.filename)).name} is missing"
    except (OSError, ValueError, TypeError, KeyError, AttributeError) as error:
        return f"{META} cannot be used ({type(error).__name__})"
    return None


def _warned(folder: Path) -> bool:
    """Whether a cache is damaged, with a warning that it is made again."""
    wrong = damage(folder)
    if wrong is not None:
        print(f"warning: {folder}: {wrong}; it is made again", file=sys.stderr, flush=True)
    return wrong is not None


def _write(folder: Path, content: CacheContent, threads: int) -> None:
    """Write a cache under another name, force it to disk, and rename it."""
    _require_room(folder.parent, content.size)
    temporary, old = (folder.with_name(f".{folder.name}.{word}") for word in ("tmp", "old"))
    try:
        temporary.mkdir()
        paths = [temporary / part.name for part in content.parts]
        for path, part in zip(paths, content.parts, strict=True):
            with path.open("xb") as file:
                os.posix_fallocate(file.fileno(), 0, part.size)
        content.pack([str(path) for path in paths], threads)
        for path in paths:
            sync(path)
        write_durably(temporary / META, json.dumps(content.meta, indent=2).encode() + b"\n")
        if folder.exists():
            os.replace(folder, old)
        replace_durably(temporary, folder)
    finally:
        for path in (temporary, old):
            shutil.rmtree(path, ignore_errors=True)


def _require_room(folder: Path, size: int) -> None:
    """Raise ResourceError unless the disk of `folder` has room for `size` bytes."""
    disk = os.statvfs(folder)
    allowed = (1 - LEFT) * disk.f_bavail * disk.f_frsize
    if size <= allowed:
        return
    raise ResourceError(
        "dataset.cache",
        "disk",
        f"{size_text(size)} are needed; {size_text(allowed)}, 95 % of what is free on "
        f"{mount_of(folder)}, are allowed; choose another dataset.cache_dir or a smaller "
        "dataset.shape",
    )


def _remove_abandoned(above: Path) -> None:
    """Remove what processes that were killed have left of their caches, whose locks are free."""
    for lock in above.glob(".*.lock"):
        with suppress(OSError), open(lock, "r+", opener=opener) as file:
            if locked(file):
                for word in (".tmp", ".old"):
                    shutil.rmtree(lock.with_suffix(word), ignore_errors=True)
                lock.unlink()


@contextmanager
def _alone(folder: Path, source: str) -> Iterator[None]:
    """Lock a cache that is about to be made, and wait for another process that makes it."""
    path = folder.with_name(f".{folder.name}.lock")
    while True:
        with open(path, "a", opener=opener) as file:
            if not locked(file):
                print(f"waiting for another process that packs {source}", file=sys.stderr)
                poll_until(lambda: locked(file))
            try:
                # Its last owner removed it: another process may lock a new one of this name.
                ours = os.stat(path).st_ino == os.fstat(file.fileno()).st_ino
            except FileNotFoundError:
                ours = False
            if ours:
                try:
                    yield
                finally:
                    with suppress(FileNotFoundError):
                        path.unlink()
                    unlock(file)
                return
