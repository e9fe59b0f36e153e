"""dataset.cache=disk keeps decoded examples, written by the launcher and mapped by workers.

A dataset says by `sources(split)` what its examples are read from. A cache is the folder
CACHE_DIR/KEY of meta.json and, for each split, {split}.inputs.npy and {split}.targets.npy, of
several inputs1.npy and so on too: one copy for all processes of the host, which stays in the
system's page cache while there is room.
"""

from __future__ import annotations

import hashlib
import json
import mmap
import os
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from ninefold.dataset import Dataset, Examples, Split
from ninefold.dataset.arrays import Array
from ninefold.dataset.cache_folder import META, damage, write
from ninefold.errors import DataError
from ninefold.extensions import DECODERS
from ninefold.files import read_json
from ninefold.machine import installed
from ninefold.places import PACKAGE
from ninefold.secrets import redacted
from ninefold.tree import each, filled, leaves

# Arguments of a dataset that do not change what its arrays hold; of root see `key_of`.
NOT_IN_KEY = (
    *("root", "download", "cache", "cache_dir", "resident"),
    *("mean", "std", "flip", "crop", "val"),
)
# Those of extensions may be absent.
PACKAGES = ("ninefold", "numpy", "pillow", "scipy", "torch", "torchvision", *DECODERS)

Files = dict[str, str]  # a cache: the path of each of its files by name


def make(dataset: Dataset, node: Mapping[str, Any], threads: int) -> Files | None:
    """Put the examples of `dataset` into a cache, if it asks for one and there is none yet.

    node: its configuration, resolved. threads: how many decode at the same time.

    Raises DataError, ResourceError if there is too little room, and ConfigError.
    """
    if dataset.cache is None:
        return None
    folder = Path(dataset.cache_dir).expanduser().absolute() / key_of(dataset, node)
    if damage(folder):
        write(folder, *_content(dataset, node, threads))
    return {path.name: str(path) for path in sorted(folder.iterdir())}


def reader(dataset: Dataset, files: Mapping[str, str] | None) -> Callable[[Split], Examples]:
    """What loads a split of `dataset`: from the cache in `files` where it holds the split."""
    if files is None:
        return dataset.load
    meta = read_json(files[META])

    def load(split: Split) -> Examples:
        if split not in meta["splits"]:
            return dataset.load(split)
        held = meta["splits"][split]
        inputs, targets = (
            each(lambda name: mapped(files[name]), held[what]) for what in ("inputs", "targets")
        )
        return Examples(inputs, targets, tuple(held["names"]))

    return load


def notes_of(dataset: Dataset, files: Mapping[str, str] | None) -> list[str]:
    """The notes of `dataset`, of its cache in `files` those of when it was made."""
    found: list[str] = dataset.notes if files is None else read_json(files[META])["notes"]
    return found


def mapped(path: str) -> npt.NDArray[Any]:
    """The array in a .npy file, mapped read-only; it is read in random order."""
    array = np.lib.format.open_memmap(path, mode="r")
    memory: Any = array.base  # which NumPy says is an array
    memory.madvise(mmap.MADV_RANDOM)
    return np.asarray(array)


def _text(node: Mapping[str, Any]) -> str:
    return json.dumps(node, sort_keys=True, default=str)


def _arguments(node: Mapping[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in node.items() if key not in NOT_IN_KEY}


def _located(tree: Any) -> Any:
    """The arguments with the paths that are there from the root on: another folder has others."""
    if isinstance(tree, Mapping):
        return {key: _located(value) for key, value in tree.items()}
    if isinstance(tree, list | tuple):
        return [_located(value) for value in tree]
    return os.path.abspath(tree) if isinstance(tree, str) and os.path.exists(tree) else tree


def key_of(dataset: Dataset, node: Mapping[str, Any]) -> str:
    """The name of a dataset's cache: a SHA-256 of all that its decoded examples depend on.

    These are the target, the code of its module and those of its bases, or of its package if it is
    one of ours, and of this package, the arguments except those that only augment, versions, and
    the path, size and time of modification of each file that it reads; of a split that names none,
    the root. Raises DataError for a file that is not there.
    """
    code = hashlib.sha256()
    files = sorted(Path(__file__).parent.glob("*.py"))
    for kind in type(dataset).__mro__:
        own = Path(getattr(sys.modules[kind.__module__], "__file__", None) or "")
        if PACKAGE not in own.parents:
            files += [own] * own.is_file()
        elif kind is type(dataset):
            files += sorted(own.parent.glob("*.py"))
    for file in files:
        code.update(file.read_bytes())
    found = _located(_arguments(node))
    about = [code.hexdigest(), [installed(package) for package in PACKAGES], found]
    digest = hashlib.sha256(_text({"about": about}).encode())
    root = os.path.join(os.path.expanduser(str(node.get("root") or "")), "")
    for split in dataset.splits:
        sources = dataset.sources(split)
        digest.update(b"" if sources else root.encode())
        for path in map(os.fspath, sources):
            try:
                status = os.stat(path)
            except OSError as error:
                wrong = f"{path}, one of its sources, cannot be found ({error.strerror})"
                allowed = "the cache is made again when one of them changes"
                do = "correct what `sources` of the dataset returns"
                raise DataError("dataset.cache", dataset.cache, wrong, allowed, do) from error
            line = [split, path.removeprefix(root), status.st_size, status.st_mtime_ns]
            digest.update(json.dumps(line).encode())
    return digest.hexdigest()


def _content(
    dataset: Dataset, node: Mapping[str, Any], threads: int
) -> tuple[dict[str, Array], dict[str, Any], int]:
    """The arrays in the cache of a dataset, by the names of their files, its meta.json, and how
    many threads decode: items of a user's class draw from the generators of the process, so one.
    """
    arrays: dict[str, Array] = {}
    splits: dict[str, Any] = {}
    for split in dataset.splits:
        examples = dataset.load(split)
        threads = threads if examples.reader is None else 1
        splits[split] = {"names": list(map(str, examples.names))}
        for what, tree in (("inputs", examples.inputs), ("targets", examples.targets)):
            found = leaves(tree)
            names = [f"{split}.{what}{n or ''}.npy" for n in range(len(found))]
            arrays |= zip(names, found, strict=True)
            splits[split][what] = filled(tree, names)
    source = str(node.get("root") or node.get("_target_"))
    about = {"source": source, "arguments": _arguments(node)}
    meta = {**about, "splits": splits, "notes": dataset.notes}
    return arrays, redacted(json.loads(_text(meta))), threads
