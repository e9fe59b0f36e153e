"""Reads files of weights, also those of strangers: runs no code and bounds the memory."""

from __future__ import annotations

import os
import re
import warnings
import zipfile
from collections.abc import Callable, Mapping
from importlib import import_module
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from ninefold.errors import CheckpointError, ResourceError, not_installed
from ninefold.extensions import READS_SHARDED
from ninefold.files import opener, require_stored
from ninefold.machine import available_memory
from ninefold.numbers import amount

SAFETENSORS = ".safetensors"
CONTAINERS = (Mapping, list, tuple, set)
MAX_CONTAINERS, MAX_DEPTH = 1_000_000, 100  # a content of 10,000 tensors has 10,000 containers


def reader_of(path: Path, field: str) -> Callable[[Path, str], dict[str, Any]]:
    """`read` of the extension that reads a checkpoint which is a folder. Raises CheckpointError."""
    try:
        read: Callable[[Path, str], dict[str, Any]] = import_module(READS_SHARDED).read
    except ModuleNotFoundError as error:
        wrong = "it is a folder that an extension wrote, which is not here to read it"
        allowed = "files NAME.pt are read without one"
        raise CheckpointError(field, path, wrong, allowed, "put the extension back") from error
    return read


def load(path: Path, field: str) -> Any:
    """The content of a file of torch.save, with tensors on the CPU. Raises CheckpointError."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # a damaged file is reported once, below
            content = torch.load(path, map_location="cpu", weights_only=True)
        require_bounded(content, path.stat().st_size)
    except Exception as error:  # torch.load fails in at least five types
        do = "only tensors and plain containers are loaded"
        raise CheckpointError(field, path, "it cannot be read", _reason(error), do) from error
    return content


def read_safetensors(path: Path, field: str) -> dict[str, Tensor]:
    """The tensors in a safetensors file, on the CPU. Raises CheckpointError, ConfigError."""
    try:
        from safetensors.torch import load_file
    except ImportError as error:
        raise not_installed(field, path, "safetensors", "timm") from error
    try:
        found: dict[str, Tensor] = load_file(str(path))
    except Exception as error:  # the library's own, OSError, and torch's for dtypes it lacks
        said = str(error).partition("\n")[0] or "it is damaged"
        do = "a whole file of the safetensors format is needed"
        raise CheckpointError(field, path, "it cannot be read", said, do) from error
    return found


def damaged_part(path: Path) -> str | None:
    """The name of a part of a checkpoint that does not match its own checksum, if one does not.

    A checkpoint is a zip archive, whose checksums torch writes and does not look at.
    """
    try:
        with zipfile.ZipFile(path) as archive:
            return archive.testzip()
    except (OSError, ValueError, zipfile.BadZipFile, NotImplementedError, RuntimeError, EOFError):
        return None  # it is another kind of file, or so damaged that torch will tell


def require_honest(path: Path, field: str) -> None:
    """Raise CheckpointError, ResourceError if a file takes more memory than it says or there is."""
    try:
        with open(path, "rb", opener=opener) as file:
            size = os.fstat(file.fileno()).st_size
            require_stored(file)
    except (OSError, ValueError) as error:
        allowed = getattr(error, "strerror", None) or str(error)
        do = "only files as torch.save writes them are loaded"
        raise CheckpointError(field, path, "it cannot be read", allowed, do) from error
    free = available_memory()
    if free is not None and size > free:
        wrong = f"it has {amount(size)}, and is read as a whole"
        allowed = f"{amount(free)} of memory are available"
        raise ResourceError(field, path, wrong, allowed, "free some, or use a larger machine")


def require_bounded(tree: Any, size: int) -> None:
    """Raise ValueError if what was read from a file of `size` bytes is far larger than that.

    A few bytes can claim a tensor of any shape, or lists that hold each other without an end.
    A tensor of 1 MiB is allowed in any file: some are expanded.
    """
    left = [(tree, 0)] if isinstance(tree, (Tensor, *CONTAINERS)) else []
    seen = scanned = 0
    while left:
        node, depth = left.pop()
        if isinstance(node, Tensor):
            plain = node.layout == torch.strided and not node.is_meta  # others never fit a model
            if plain and node.numel() * node.element_size() > max(size, 1 << 20):
                raise ValueError(
                    f"a tensor in it claims {list(node.shape)}, the file {size:,} bytes"
                )
            continue
        inner = node.values() if isinstance(node, Mapping) else node
        seen, scanned = seen + 1, scanned + len(inner)
        if depth > MAX_DEPTH or seen > MAX_CONTAINERS or scanned > 100 * MAX_CONTAINERS:
            raise ValueError(
                f"it is nested over {MAX_DEPTH} deep, or has over {MAX_CONTAINERS:,} containers"
            )
        left += [(v, depth + 1) for v in inner if isinstance(v, (Tensor, *CONTAINERS))]


def _reason(error: Exception) -> str:
    """Why torch could not read a file, without its advice to run what code it holds."""
    text = str(error)
    if found := re.search(r"Unsupported global: GLOBAL (\S+)", text):
        return f"it holds a {found[1]}"
    said = text.partition("\n")[0]
    return said if said and "weights_only" not in said else "it is no checkpoint, or a damaged one"
