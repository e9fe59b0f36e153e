"""Reads a file in the safetensors format, which holds tensors by name and nothing else."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path

from torch import Tensor

from ninefold.errors import CheckpointError, ConfigError, one_line

SUFFIX = ".safetensors"


def read(path: Path, field: str) -> dict[str, Tensor]:
    """The tensors in the file. Raises CheckpointError, ConfigError without the library.

    field: the key that names the file, for the error.
    """
    if find_spec("safetensors") is None:
        raise ConfigError(
            field,
            path,
            "safetensors is not installed",
            "it is in ninefold[timm]",
            "pip install 'ninefold[timm]'",
        )
    from safetensors import SafetensorError
    from safetensors.torch import load_file

    try:
        found: dict[str, Tensor] = load_file(path)
    except (OSError, SafetensorError) as error:
        raise CheckpointError(
            field,
            path,
            "it cannot be read",
            one_line(str(error))[:200],
            "fetch or copy the file again",
        ) from error
    return found
