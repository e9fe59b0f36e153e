"""A cache on disk: a folder of .npy files and meta.json, written whole or not at all."""

from __future__ import annotations

import os
import shutil
import sys
import time
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from ninefold.dataset.arrays import Array
from ninefold.errors import DataError, Failure, ResourceError, error_text, memory_failure
from ninefold.files import opener, read_json, replace_durably, sync, write_json
from ninefold.numbers import amount, counted
from ninefold.progress import bar
from ninefold.waits import locked, poll_until, unlock

META = "meta.json"
MAX_BYTES, MAX_ROWS = 8 * 2**20, 16  # of what a thread decodes at a time


def write(folder: Path, arrays: Mapping[str, Array], meta: Mapping[str, Any], threads: int) -> None:
    """Write a cache unless an undamaged one exists, after waiting for a process that writes it.

    arrays: by the names of their files. meta: what meta.json says beside the sizes of these.
    Raises what decoding raises, and ResourceError.
    """
    above = folder.parent
    try:
        above.mkdir(parents=True, exist_ok=True)
        _remove_abandoned(above)
        with _alone(folder, meta["source"]):
            wrong = damage(folder)
            if folder.exists() and wrong is not None:
                print(f"warning: {folder}: {wrong}; it is made again", file=sys.stderr, flush=True)
            if wrong is not None:
                _write(folder, arrays, meta, threads)
    except OSError as error:
        raise ResourceError(
            "dataset.cache_dir",
            above,
            error.strerror or type(error).__name__,
            "decoded examples are written there",
            "free some room, choose another dataset.cache_dir, or leave dataset.cache out",
        ) from error


def damage(folder: Path) -> str | None:
    """What is wrong with a cache on disk, by the sizes of its files; None if nothing is."""
    try:
        for name, expected in read_json(folder / META)["bytes"].items():
            size = (folder / name).stat().st_size
            if size != expected:
                return f"{name} has {size:,} bytes instead of {expected:,}"
    except FileNotFoundError as error:
        return f"{Path(str(error.filename)).name} is missing"
    except (OSError, ValueError, TypeError, KeyError, AttributeError) as error:
        return f"{META} cannot be used ({type(error).__name__})"
    return None


def _write(
    folder: Path, arrays: Mapping[str, Array], meta: Mapping[str, Any], threads: int
) -> None:
    """Write a cache under another name, force it to disk, and rename it."""
    temporary, damaged = (folder.with_name(f".{folder.name}.{word}") for word in ("tmp", "old"))
    try:
        _remove(temporary, damaged)  # of a process that was killed while this one waited for it
        temporary.mkdir()
        lazy = sum(len(array) for array in arrays.values() if not isinstance(array, np.ndarray))
        count = sum(len(array) for name, array in arrays.items() if name.endswith(".inputs.npy"))
        title, began = os.path.basename(str(meta["source"]).rstrip("/")), time.monotonic()
        with bar(
            desc=f"caching {title}",
            total=lazy,
            bar_format="{desc}: {percentage:3.0f}%|{bar}| [{elapsed}<{remaining}]",
        ) as progress:
            for name, rows in _packed(temporary, arrays, threads):
                if not isinstance(arrays[name], np.ndarray):
                    progress.update(rows)
        took = time.monotonic() - began
        sizes = {name: (temporary / name).stat().st_size for name in arrays}
        size = amount(sum(sizes.values()))
        said = f"cached {title}: {counted(count, 'example')}, {size} in {took:.1f} s"
        print(said, file=sys.stderr, flush=True)
        for name in arrays:
            sync(temporary / name)
        write_json(temporary / META, {**meta, "bytes": sizes})
        if folder.exists():
            os.replace(folder, damaged)
        replace_durably(temporary, folder)
    finally:
        _remove(temporary, damaged)


def _packed(folder: Path, arrays: Mapping[str, Array], threads: int) -> Iterator[tuple[str, int]]:
    """Write the arrays; yields the name of a file and how many rows were written to it.

    threads: that decode at the same time.
    The files are the same for any number of threads. Raises what decoding raises, and OSError.
    """
    dtypes = {  # one row is decoded of an array that does not say it
        name: np.dtype(getattr(array, "dtype", None) or array[np.arange(len(array))[:1]].dtype)
        for name, array in arrays.items()
    }
    pool = ThreadPoolExecutor(threads, "cache")
    try:
        waiting = []
        for name, array in arrays.items():
            file = np.lib.format.open_memmap(folder / name, "w+", dtypes[name], array.shape)
            step = max(1, min(MAX_ROWS, MAX_BYTES // max(1, file[:1].nbytes)))
            descriptor = os.open(folder / name, os.O_RDWR)  # as some file systems need for it
            try:
                os.posix_fallocate(descriptor, 0, file.offset + file.nbytes)
            finally:
                os.close(descriptor)
            for first in range(0, len(array), step):
                rows = np.arange(first, min(first + step, len(array)))
                waiting.append(pool.submit(_write_rows, folder / name, file, array, rows))
        for done in as_completed(waiting):
            yield done.result()
    finally:
        pool.shutdown(cancel_futures=True)


def _write_rows(
    path: Path, file: np.memmap[Any, Any], array: Array, rows: npt.NDArray[np.int64]
) -> tuple[str, int]:
    """Read these rows of an array and write them to their place in its file."""
    try:
        values = array[rows]
    except Failure:
        raise
    except Exception as error:
        raise memory_failure(error, "examples were being decoded") or DataError(
            "dataset.cache",
            path.name,
            error_text(error),
            f"the dataset raised it in the examples {rows[0]} to {rows[-1]}",
            "correct the dataset",
        ) from error
    if values.shape != (len(rows), *file.shape[1:]) or values.dtype != file.dtype:
        wrong = f"examples from {rows[0]} on are {values.dtype} {list(values.shape[1:])}"
        allowed = f"the others are {file.dtype} {list(file.shape[1:])}"
        do = "see that the dataset gives all of them the same shape and dtype"
        raise DataError("dataset.cache", path.name, wrong, allowed, do)
    view = np.ascontiguousarray(values).reshape(-1).view(np.uint8).data
    offset = file.offset + int(rows[0]) * file[:1].nbytes
    descriptor = os.open(path, os.O_WRONLY)  # not through the map: a full disk would be a SIGBUS
    try:
        while view:
            written = os.pwrite(descriptor, view, offset)
            view, offset = view[written:], offset + written
    finally:
        os.close(descriptor)
    return path.name, len(rows)


def _remove_abandoned(above: Path) -> None:
    """Remove what processes that were killed have left of their caches, whose locks are free."""
    for lock in above.glob(".*.lock"):
        with suppress(OSError), open(lock, "r+", opener=opener) as file:
            if locked(file):
                _remove(lock.with_suffix(".tmp"), lock.with_suffix(".old"))
                unlock(file)


def _remove(*folders: Path) -> None:
    for folder in folders:
        shutil.rmtree(folder, ignore_errors=True)


@contextmanager
def _alone(folder: Path, source: str) -> Iterator[None]:
    """Lock a cache that is about to be made, and wait for another process that makes it.

    The file of the lock stays: one that is removed may be locked by two processes.
    """
    with open(folder.with_name(f".{folder.name}.lock"), "a", opener=opener) as file:
        if not locked(file):
            print(f"waiting for another process that packs {source}", file=sys.stderr)
            poll_until(lambda: locked(file))
        try:
            yield
        finally:
            unlock(file)
