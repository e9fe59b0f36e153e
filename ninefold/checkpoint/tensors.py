"""Files of the safetensors format: tensors by name, and nothing that could be run."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from ninefold.errors import CheckpointError, not_installed

SUFFIX = ".safetensors"


def package(field: str, value: object) -> Any:
    """The module safetensors.torch. Raises ConfigError for `field` if it is not installed."""
    try:
        import safetensors.torch
    except ImportError as error:
        raise not_installed(field, value, "safetensors", "safetensors") from error
    return safetensors.torch


def read(path: Path, field: str) -> dict[str, Tensor]:
    """The tensors in the file, on the CPU. Raises CheckpointError, ConfigError."""
    load = package(field, path).load_file
    try:
        found: dict[str, Tensor] = load(str(path))
    except Exception as error:  # the library's own, OSError, and torch's for dtypes it lacks
        raise CheckpointError(
            field, path, "it cannot be read", str(error).partition("\n")[0] or "it is damaged",
            "a whole file of the safetensors format is needed",
        ) from error  # fmt: skip
    return found


def packed(tensors: Mapping[str, Tensor], about: Mapping[str, str]) -> bytes:
    """A file of the tensors, contiguous and each with memory of its own; `about` is text."""
    copies = {
        name: tensor.detach().cpu().clone(memory_format=torch.contiguous_format)
        for name, tensor in tensors.items()
    }
    # Those who load a file into Transformers need to be told that it is torch's.
    data: bytes = package("format", "safetensors").save(copies, {"format": "pt", **about})
    return data
