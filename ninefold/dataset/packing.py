"""Decodes arrays and writes them as .npy files, in several threads."""

from __future__ import annotations

import io
import os
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from ninefold.dataset.arrays import Array, varies
from ninefold.errors import DataError, Failure, ResourceError, memory_failure
from ninefold.progress import bar

BYTES, ROWS = 8 * 2**20, 16  # what a thread decodes at a time, at most


@dataclass(frozen=True)
class NpyFile:
    """An array to be written as one .npy file: C order, little endian.

    name: of the file.
    array: read row by row when it is indexed.
    dtype: of the array's values.
    """

    name: str
    array: Array
    dtype: np.dtype[Any]

    @property
    def shape(self) -> tuple[int, ...]:
        return self.array.shape

    @property
    def header(self) -> bytes:
        """What stands before the values in a .npy file."""
        file = io.BytesIO()
        descr = np.lib.format.dtype_to_descr(self.dtype.newbyteorder("<"))
        np.lib.format.write_array_header_1_0(
            file, {"descr": descr, "fortran_order": False, "shape": self.shape}
        )
        return file.getvalue()

    @property
    def row_bytes(self) -> int:
        return int(np.prod(self.shape[1:], dtype=np.int64)) * self.dtype.itemsize

    @property
    def size(self) -> int:
        """Bytes of the file."""
        return len(self.header) + len(self.array) * self.row_bytes

    def chunks(self) -> Iterator[tuple[int, int]]:
        """First and last row, exclusive, of what is decoded at a time."""
        step = max(1, min(ROWS, BYTES // max(1, self.row_bytes)))
        for first in range(0, len(self.array), step):
            yield first, min(first + step, len(self.array))


def npy_file(name: str, array: Array) -> NpyFile:
    """`array` as a part. Decodes one of its rows if the array does not say its dtype."""
    dtype = getattr(array, "dtype", None)
    return NpyFile(name, array, np.dtype(dtype or array[np.arange(len(array))[:1]].dtype))


@dataclass(frozen=True)
class CacheContent:
    """What a cache is to hold.

    title: of the progress bar.
    meta: its meta.json, which does not depend on time.
    """

    title: str
    parts: list[NpyFile]
    meta: dict[str, Any]

    @property
    def size(self) -> int:
        return sum(part.size for part in self.parts)

    def pack(self, paths: Sequence[str], threads: int) -> None:
        """Write the parts to these files, with a progress bar."""
        most = [len(part.array) for part in self.parts if not isinstance(part.array, np.ndarray)]
        began = time.monotonic()
        with bar(
            desc=f"caching {self.title}",
            total=sum(most),
            unit=" files",
            bar_format="{desc}: {percentage:3.0f}%|{bar}| {n:,}/{total:,} "
            "[{elapsed}<{remaining}, {rate_noinv_fmt}]",
        ) as progress:

            def packed(number: int, rows: int) -> None:
                if not isinstance(self.parts[number].array, np.ndarray):
                    progress.update(rows)

            pack(self.parts, paths, threads, packed)
        took = time.monotonic() - began
        print(
            f"cached {self.title}: {sum(most):,} files, {size_text(self.size)} in {took:.1f} s",
            file=sys.stderr,
            flush=True,
        )


def size_text(size: float) -> str:
    """Bytes in GiB, or MiB if they are few."""
    return f"{size / 2**30:.1f} GiB" if size >= 0.1 * 2**30 else f"{size / 2**20:.1f} MiB"


def pack(
    parts: Sequence[NpyFile],
    paths: Sequence[str],
    threads: int,
    packed: Callable[[int, int], object],
) -> None:
    """Write each part to the file at its path, which is there already and large enough.

    threads: that decode at the same time; one where rows may differ from epoch to epoch, as items
        of the user's classes, which draw from the generators of the process.
    packed: called with the index of a part and how many of its rows have just been written.

    The files are the same whatever the number of threads. Raises what decoding raises, and
    ResourceError if a file cannot be written.
    """
    for part, path in zip(parts, paths, strict=True):
        _write(path, part.header, 0)
    chunks = [(number, *span) for number, part in enumerate(parts) for span in part.chunks()]
    if any(varies(part.array) for part in parts):
        threads = 1

    def write(chunk: tuple[int, int, int]) -> tuple[int, int]:
        number, first, last = chunk
        _pack_chunk(parts[number], paths[number], first, last)
        return number, last - first

    pool = ThreadPoolExecutor(threads, "cache")
    try:
        for done in as_completed([pool.submit(write, chunk) for chunk in chunks]):
            packed(*done.result())
    finally:
        pool.shutdown(cancel_futures=True)


def _pack_chunk(part: NpyFile, path: str, first: int, last: int) -> None:
    try:
        values = part.array[np.arange(first, last)]
    except Failure:
        raise
    except Exception as error:
        raise memory_failure(error, "examples were being decoded") or DataError(
            "dataset.cache",
            part.name,
            f"{type(error).__name__}: {error}; the dataset raised it for one of the "
            f"{last - first} examples from {first} on; correct the dataset",
        ) from error
    if values.shape != (last - first, *part.shape[1:]) or values.dtype != part.dtype:
        raise DataError(
            "dataset.cache",
            part.name,
            f"examples from {first} on are {values.dtype} "
            f"{list(values.shape[1:])}; the others are {part.dtype} {list(part.shape[1:])}; see "
            "that the dataset gives all of them the same shape and dtype",
        )
    little: npt.NDArray[Any] = np.ascontiguousarray(values, part.dtype.newbyteorder("<"))
    _write(path, little.reshape(-1).view(np.uint8).data, len(part.header) + first * part.row_bytes)


def _write(path: str, content: bytes | memoryview, offset: int) -> None:
    """Write `content` at `offset` of a file. Raises ResourceError."""
    view = memoryview(content)
    try:
        descriptor = os.open(path, os.O_WRONLY)
        try:
            while view:
                written = os.pwrite(descriptor, view, offset)
                view, offset = view[written:], offset + written
        finally:
            os.close(descriptor)
    except OSError as error:
        raise refused(path, error) from error


def refused(path: str | os.PathLike[str], error: OSError) -> ResourceError:
    """The failure of a cache that the system refuses to store."""
    return ResourceError(
        "dataset.cache_dir",
        path,
        f"{error.strerror or type(error).__name__}; decoded examples are written there; free some "
        "room, choose another dataset.cache_dir, or leave dataset.cache out",
    )
