"""dataset.cache=bytes: image files as they are, read into memory once and decoded each time.

The launcher (on another host its first process) reads them into an anonymous file of the system
(memfd), from which all processes of the host read. It is freed when the process that made it ends,
however it ends.
"""

from __future__ import annotations

import hashlib
import json
import os
import sys
import time
import weakref
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from ninefold.dataset import Dataset, Examples, Split
from ninefold.dataset.arrays import Array, Decoded, InMemory
from ninefold.dataset.images import bad_image, unusable
from ninefold.dataset.packing import size_text
from ninefold.errors import ConfigError, DataError, ResourceError
from ninefold.files import opener, read_json
from ninefold.machine import available_memory
from ninefold.progress import bar

Files = dict[str, str]
BYTES, OFFSETS, INDEX = "encoded.bytes", "encoded.offsets", "encoded.json"  # the files in memory
MOST = 0.75  # share of the free memory that they may take; training needs the rest
READERS, AT_ONCE = 8, 32  # threads that read, and files that a thread takes at a time

_made: dict[str, Files] = {}  # by what was read: kept while this process lives


@dataclass(frozen=True)
class Encoded:
    """Files that are in memory one behind the other, each opened when it is indexed.

    offsets: where each begins, and where the last one ends: int64 [n + 1].
    """

    paths: Sequence[str]
    content: Content
    offsets: npt.NDArray[np.int64]

    def __len__(self) -> int:
        return len(self.paths)

    def __getitem__(self, row: int) -> InMemory:
        first, last = self.offsets[row : row + 2].tolist()
        return InMemory(self.content.read(first, last), self.paths[row])


class Content:
    """A file in memory, read by any number of threads. It is not mapped: what is mapped counts as
    memory of each process. Raises OSError.
    """

    def __init__(self, path: str) -> None:
        self._descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        weakref.finalize(self, os.close, self._descriptor)

    def read(self, first: int, last: int) -> bytes:
        return os.pread(self._descriptor, last - first, first)


def make(dataset: Dataset, node: Mapping[str, Any]) -> Files:
    """Read the files of all examples of `dataset` into memory, unless this process holds them.

    node: its configuration. Raises ConfigError where there are no such files or no such memory,
    ResourceError if they do not fit, and DataError.
    """
    arrays = {
        f"{split}.{what}": array
        for split in dataset.splits
        for what, array in _of_files(dataset.load(split)).items()
    }
    if not arrays or not hasattr(os, "memfd_create"):
        raise ConfigError(
            "dataset.cache",
            "bytes",
            f"{node.get('_target_')} decodes no image files one by one; folder and masks do"
            if not arrays
            else "it needs memory files (memfd_create), which Linux has; disk is allowed here",
            "leave it out, or keep decoded examples with dataset.cache=disk",
        )
    paths = [path for array in arrays.values() for path in array.paths]
    status = [_status(str(dataset.root), path) for path in paths]
    lines = json.dumps([list(arrays), paths, [(s.st_size, s.st_mtime_ns) for s in status]])
    digest = hashlib.sha256(lines.encode()).hexdigest()
    if digest not in _made:
        offsets = np.cumsum([0, *(each.st_size for each in status)], dtype=np.int64)
        _require_room(int(offsets[-1]))
        index, first = {}, 0
        for name, array in arrays.items():
            index[name] = [first, _names(array)]
            first += len(array.paths)
        _made[digest] = {
            BYTES: _read(dataset, paths, offsets),
            OFFSETS: _path_of(_memory(OFFSETS, offsets.tobytes())),
            INDEX: _path_of(_memory(INDEX, json.dumps(index).encode())),
        }
    return _made[digest]


def reader(dataset: Dataset, files: Mapping[str, str]) -> Callable[[Split], Examples]:
    """What loads a split of `dataset` whose files are in memory.

    Raises ResourceError if the memory cannot be opened, and, when a split is loaded, DataError if
    its files are not those that were read.
    """
    try:
        content = Content(files[BYTES])
        with open(files[OFFSETS], "rb", opener=opener) as file:
            offsets = np.frombuffer(file.read(), np.int64)
        index = read_json(files[INDEX])
    except OSError as error:
        raise ResourceError(
            "dataset.cache",
            "bytes",
            f"the memory of the process that read the files cannot be opened ({error.strerror}); "
            "the processes of a host must see each other; use disk",
        ) from error

    def load(split: Split) -> Examples:
        examples = dataset.load(split)
        arrays: dict[str, Array] = {"inputs": examples.inputs, "targets": examples.targets}
        for what, array in _of_files(examples).items():
            first, names = index[f"{split}.{what}"]
            if names != _names(array):
                raise DataError(
                    "dataset.root",
                    dataset.root,
                    "files were added or removed after they were read into memory; the same ones "
                    "are allowed; start again",
                )
            table = offsets[first : first + len(array.paths) + 1]
            arrays[what] = array.reading(Encoded(array.paths, content, table))
        return Examples(arrays["inputs"], arrays["targets"], examples.names)

    return load


def _of_files(examples: Examples) -> dict[str, Decoded]:
    """Those arrays of `examples` whose files may be opened by others."""
    both = {"inputs": examples.inputs, "targets": examples.targets}
    return {w: a for w, a in both.items() if isinstance(a, Decoded) and a.takes_opened}


def _names(array: Decoded) -> str:
    names = "\0".join(map(os.path.abspath, array.paths))  # dataset.root may be relative at first
    return hashlib.sha256(names.encode(errors="surrogateescape")).hexdigest()


def _status(root: str, path: str) -> os.stat_result:
    if wrong := unusable(path):
        raise bad_image(root, path, wrong)
    return os.stat(path)


def _require_room(size: int) -> None:
    """Raise ResourceError unless memory has room for `size` bytes."""
    free = available_memory()
    if free is None or size <= MOST * free:
        return
    raise ResourceError(
        "dataset.cache",
        "bytes",
        f"the files take {size_text(size)}; {size_text(MOST * free)} are allowed, {MOST:.0%} of "
        "the free memory; leave it out, then the system keeps in memory what it can; or set "
        "dataset.cache=disk",
    )


def _read(dataset: Dataset, paths: Sequence[str], offsets: npt.NDArray[np.int64]) -> str:
    """Read the files into memory, with a progress bar; returns its path. Raises DataError."""
    memory, size = _memory(BYTES), int(offsets[-1])

    def read(first: int) -> int:
        last = min(first + AT_ONCE, len(paths))
        for number in range(first, last):
            begin, end = offsets[number : number + 2].tolist()
            try:
                with open(paths[number], "rb", opener=opener) as file:
                    content = file.read(end - begin + 1)
            except OSError as error:
                wrong = error.strerror or type(error).__name__
                raise bad_image(str(dataset.root), paths[number], wrong) from error
            if len(content) != end - begin:
                raise bad_image(str(dataset.root), paths[number], "its size has just changed")
            _write(memory, content, begin)
        return int(offsets[last] - offsets[first])

    began = time.monotonic()
    pool = ThreadPoolExecutor(READERS)
    try:
        with bar(desc="reading the files", total=size, unit="B", unit_scale=True) as progress:
            for count in pool.map(read, range(0, len(paths), AT_ONCE)):
                progress.update(count)
    except BaseException:
        os.close(memory)
        raise
    finally:
        pool.shutdown(cancel_futures=True)
    took = time.monotonic() - began
    line = f"read {len(paths):,} files into memory, {size_text(size)} in {took:.1f} s"
    print(line, file=sys.stderr, flush=True)
    return _path_of(memory)


def _memory(name: str, content: bytes = b"") -> int:
    """The descriptor of a new file in memory. It stays open while this process lives."""
    memory = os.memfd_create(name)
    _write(memory, content, 0)
    return memory


def _path_of(memory: int) -> str:
    """The path by which the processes of this host open it."""
    return f"/proc/{os.getpid()}/fd/{memory}"


def _write(memory: int, content: bytes, offset: int) -> None:
    """Write `content` at `offset`. Raises ResourceError if there is no memory left."""
    view = memoryview(content)
    try:
        while view:
            written = os.pwrite(memory, view, offset)
            view, offset = view[written:], offset + written
    except OSError as error:
        raise ResourceError(
            "dataset.cache",
            "bytes",
            f"{error.strerror or type(error).__name__}; encoded files are kept in memory; leave it "
            "out, or set dataset.cache=disk",
        ) from error
