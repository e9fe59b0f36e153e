"""dataset.cache: decoded examples in memory or on disk, made by the launcher, mapped by workers.

A dataset says by `cache`, `cache_rate` and `cache_dir` whether, and by `sources(split)` what its
examples are read from. A cache is a set of files: meta.json and, for each split,
{split}.inputs.npy and {split}.targets.npy. On disk they are in CACHE_DIR/KEY/. In memory each is a
memfd of the launcher, which other processes open as /proc/PID/fd/N: one copy for all processes of
the host, which the kernel frees when the launcher and its workers have ended, however they end.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import mmap
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import IO, Any

import numpy as np
import numpy.typing as npt

from ninefold.dataset import Dataset, Examples, Split
from ninefold.dataset.arrays import Array, Rows, Unread
from ninefold.dataset.cache_folder import META, damage, write
from ninefold.dataset.packing import Content, Part, part_of, size_text
from ninefold.errors import ConfigError, ResourceError
from ninefold.files import opener, read_json
from ninefold.machine import available_memory
from ninefold.secrets import redacted

FORMAT = 1  # of the files; part of the key
# Arguments of a dataset that do not change what its arrays hold; the files say what root does.
NOT_IN_KEY = (
    *("root", "download", "cache", "cache_rate", "cache_dir", "resident"),
    *("mean", "std", "flip", "crop", "val"),
)
DECODERS = ("ninefold", "numpy", "pillow", "scipy", "nibabel")  # packages; nibabel may be absent
OF_MEMORY = 0.8  # share of the free memory that may be used

Files = dict[str, str]  # a cache: the path of each of its files by name


_kept: dict[str, Files] = {}  # in the launcher: the caches of its runs, by the configuration


def kept(node: Mapping[str, Any]) -> Files | None:
    """The cache that an earlier run of this command made for a dataset of this configuration.

    None if there is none, or its files are damaged. Sources that changed since are not noticed:
    all runs of a study train on the same examples.
    """
    files = _kept.get(_same(node))
    if files is None or (node.get("cache") == "disk" and damage(Path(files[META]).parent)):
        return None
    return files


def keep(node: Mapping[str, Any], files: Files) -> None:
    """Remember the cache of a dataset of this configuration, for `kept`."""
    _kept[_same(node)] = files


def make(
    dataset: Dataset, node: Mapping[str, Any], processes: int, splits: Sequence[Split] = ()
) -> Files | None:
    """Decode the examples of `dataset` into a cache, if it asks for one and there is none yet.

    node: its configuration, resolved. processes: how many decode at the same time.
    splits: those to keep in memory; all of them by default.

    Raises DataError, ResourceError if there is too little room, and ConfigError.
    """
    if dataset.cache is None:
        return None
    if dataset.cache == "disk":
        return _on_disk(dataset, node, processes)
    return _in_memory(dataset, node, processes, splits or dataset.splits)


def reader(dataset: Dataset, files: Mapping[str, str] | None) -> Callable[[Split], Examples]:
    """What loads a split of `dataset`: from the cache in `files` where it holds the split."""
    if files is None:
        return dataset.load
    meta = read_json(files[META])

    def load(split: Split) -> Examples:
        if split not in meta["splits"]:
            return dataset.load(split)
        entry = meta["splits"][split]
        arrays = {
            what: mapped(files[name])
            for what in ("inputs", "targets")
            if (name := f"{split}.{what}.npy") in files
        }
        if len(arrays) == 2 and all(len(array) == entry["count"] for array in arrays.values()):
            return Examples(arrays["inputs"], arrays["targets"], tuple(entry["names"]))
        rest = dataset.load(split)
        inputs, targets = (
            Partly(arrays[what], array) if what in arrays else array
            for what, array in (("inputs", rest.inputs), ("targets", rest.targets))
        )
        return Examples(inputs, targets, rest.names)

    return load


def mapped(path: str) -> npt.NDArray[Any]:
    """The array in a .npy file, mapped read-only; it is read in random order."""
    with open(path, "rb", opener=opener) as file:
        header = _header(file)
        if file.tell() == os.fstat(file.fileno()).st_size:  # nothing to map
            return np.empty(header[0], header[1])
        memory = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        memory.madvise(mmap.MADV_RANDOM)
        return np.frombuffer(memory, header[1], offset=file.tell()).reshape(header[0])


def _header(file: IO[bytes]) -> tuple[tuple[int, ...], np.dtype[Any]]:
    np.lib.format.read_magic(file)
    shape, _, dtype = np.lib.format.read_array_header_1_0(file)
    return shape, dtype


@dataclass(frozen=True)
class Partly(Unread):
    """An array of which some rows, evenly spread, are in memory; the others are read from it.

    kept: rows spread(len(array), len(kept)) of it.
    """

    kept: npt.NDArray[Any]
    array: Array

    @property
    def shape(self) -> tuple[int, ...]:
        return self.array.shape

    def read(self, rows: Rows) -> npt.NDArray[Any]:
        count, total = len(self.kept), len(self.array)
        rows = np.where(rows < 0, rows + total, rows)
        places = -(-rows * count // total)  # of the first kept row from this one on
        here = (places < count) & (places * total // max(count, 1) == rows)
        values = np.empty((len(rows), *self.shape[1:]), self.kept.dtype)
        values[here] = self.kept[places[here]]
        if not here.all():
            values[~here] = self.array[rows[~here]]
        return values


def spread(total: int, count: int) -> Rows:
    """`count` of the rows 0 to total - 1, evenly spaced: int64 [count]."""
    return np.arange(count, dtype=np.int64) * total // max(count, 1)


def _same(node: Mapping[str, Any]) -> str:
    """What the configurations of two runs agree in that can use the same cache."""
    places = {
        key: os.path.abspath(os.path.expanduser(str(node[key])))
        for key in ("root", "cache_dir")
        if node.get(key) is not None
    }
    how = {key: node.get(key) for key in ("cache", "cache_rate")}
    return _text({**_arguments(node), **places, **how})


def _text(node: Mapping[str, Any]) -> str:
    return json.dumps(node, sort_keys=True, default=str)


def _arguments(node: Mapping[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in node.items() if key not in NOT_IN_KEY}


def _versions() -> dict[str, str]:
    found = {}
    for package in DECODERS:
        with suppress(PackageNotFoundError):
            found[package] = version(package)
    return found


def _file_of(kind: type) -> Path:
    return Path(sys.modules[kind.__module__].__file__ or "")


def key_of(dataset: Dataset, node: Mapping[str, Any]) -> str:
    """The name of a dataset's cache: a SHA-256 of all that its decoded examples depend on.

    These are the target, the code of its module and of this package, the arguments except those
    that only augment, versions, and the path, size and time of modification of each file that it
    reads.
    """
    code = hashlib.sha256()
    for file in (*sorted(Path(__file__).parent.glob("*.py")), _file_of(dataset.__class__)):
        code.update(file.read_bytes())
    about = [FORMAT, code.hexdigest(), _versions(), _arguments(node)]
    digest = hashlib.sha256(_text({"about": about}).encode())
    root = os.path.join(os.path.expanduser(str(node.get("root") or "")), "")
    for split in dataset.splits:
        for path in dataset.sources(split):
            status = os.stat(path)
            line = [split, path.removeprefix(root), status.st_size, status.st_mtime_ns]
            digest.update(json.dumps(line).encode())
    return digest.hexdigest()


def _content(
    dataset: Dataset, node: Mapping[str, Any], splits: Sequence[Split], rate: float
) -> Content:
    """The parts of `splits`. Below a rate of 1 arrays in memory are left out: load has them."""
    parts: list[Part] = []
    held: dict[str, Any] = {}
    for split in splits:
        examples = dataset.load(split)
        held[split] = {"count": len(examples), "names": list(map(str, examples.names))}
        rows = spread(len(examples), min(len(examples), max(1, round(rate * len(examples)))))
        for what, array in (("inputs", examples.inputs), ("targets", examples.targets)):
            if rate == 1 or not isinstance(array, np.ndarray):
                parts.append(part_of(f"{split}.{what}.npy", array, rows))
    root = node.get("root")
    title = str(node.get("_target_")) if root is None else os.path.basename(str(root).rstrip("/"))
    meta = {
        "format": FORMAT,
        "source": str(node.get("_target_") if root is None else root),
        "arguments": _arguments(node),
        "versions": _versions(),
        "splits": held,
        "arrays": {
            part.name: {"shape": list(part.shape), "dtype": part.dtype.name, "bytes": part.size}
            for part in parts
        },
    }
    return Content(title, parts, redacted(json.loads(_text(meta))))


def _in_memory(
    dataset: Dataset, node: Mapping[str, Any], processes: int, splits: Sequence[Split]
) -> Files:
    if not hasattr(os, "memfd_create"):
        raise ConfigError(
            "dataset.cache",
            "ram",
            "this system has no memory that processes share by name; Linux has; use "
            "dataset.cache=disk",
        )
    content = _content(dataset, node, splits, dataset.cache_rate)
    free = available_memory()
    if free is not None and content.size > OF_MEMORY * free:
        rate = int(100 * dataset.cache_rate * OF_MEMORY * free / content.size) / 100
        lower = f"dataset.cache_rate={rate:g} " if rate else ""
        raise ResourceError(
            "dataset.cache",
            "ram",
            f"{size_text(content.size)} are needed; {size_text(OF_MEMORY * free)}, 80 % of what "
            f"is free, are allowed; use dataset.cache=disk, {lower}or a smaller dataset.shape",
        )
    descriptors: list[int] = []
    try:
        for part in content.parts:
            descriptors.append(_memory(part.name, part.size))
        paths = [_path(descriptor) for descriptor in descriptors]
        content.pack(paths, processes)
        text = json.dumps(content.meta).encode()
        descriptors.append(_memory(META, 0))
        os.write(descriptors[-1], text)
        for descriptor in descriptors:
            fcntl.fcntl(
                descriptor,
                fcntl.F_ADD_SEALS,
                fcntl.F_SEAL_WRITE | fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW,
            )
    except BaseException:
        for descriptor in descriptors:
            os.close(descriptor)
        raise
    names = [part.name for part in content.parts]
    return dict(zip([*names, META], map(_path, descriptors), strict=True))


def _memory(name: str, size: int) -> int:
    descriptor = os.memfd_create(f"ninefold-{name}", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    os.ftruncate(descriptor, size)
    return descriptor


def _path(descriptor: int) -> str:
    return f"/proc/{os.getpid()}/fd/{descriptor}"


def _on_disk(dataset: Dataset, node: Mapping[str, Any], processes: int) -> Files:
    folder = Path(dataset.cache_dir).expanduser().absolute() / key_of(dataset, node)
    if not folder.exists() or damage(folder):
        write(folder, _content(dataset, node, dataset.splits, 1.0), processes)
    return {path.name: str(path) for path in sorted(folder.iterdir())}
