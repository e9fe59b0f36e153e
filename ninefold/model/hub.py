"""Files of pretrained weights in torch.hub's cache: fetched by the launcher, read by workers."""

from __future__ import annotations

import os
import sys
from http.client import HTTPException
from pathlib import Path
from urllib.parse import urlparse

import torch
from torch import Tensor

from ninefold.errors import DataError, one_line
from ninefold.files import opener, require_stored


def cached(url: str) -> Path:
    """Path of the file of this address in torch.hub's cache."""
    return Path(torch.hub.get_dir(), "checkpoints", os.path.basename(urlparse(url).path))


def fetch(url: str, field: str, value: object) -> None:
    """Download a file, unless it is in the cache. Raises DataError.

    field, value: the key that asks for it, for the error.
    """
    path = cached(url)
    if path.is_file():
        return
    digest = torch.hub.HASH_REGEX.search(path.name)
    print(f"fetching {url} to {path}", file=sys.stderr, flush=True)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        torch.hub.download_url_to_file(
            url, str(path), digest[1] if digest else None, progress=sys.stderr.isatty()
        )
    except (OSError, HTTPException, RuntimeError) as error:  # RuntimeError: of another sha256
        raise not_fetched(field, value, error, f"{url} is needed once, as {path}") from error


def not_fetched(field: str, value: object, error: Exception, needed: str) -> DataError:
    """The failure of weights that cannot be downloaded."""
    said = one_line(str(error)) or type(error).__name__
    return DataError(
        field, value, f"it could not be fetched ({said})", needed, "put it there, or give init=FILE"
    )


def read(path: Path, field: str, value: object) -> dict[str, Tensor]:
    """The tensors in a file that torch.save wrote; runs no code of it. Raises DataError."""
    try:
        with open(path, "rb", opener=opener) as file:
            require_stored(file)
            found: dict[str, Tensor] = torch.load(file, map_location="cpu", weights_only=True)
    except Exception as error:  # torch.load fails in at least five types
        raise unusable(path, field, value, error) from error
    return found


def unusable(path: Path, field: str, value: object, error: Exception) -> DataError:
    """The failure of weights whose file is missing on this host, or cannot be read."""
    if not path.exists():
        allowed = f"the launcher of a new run fetches it, here it would be {path}"
        do = "copy it there, or let the hosts share that folder"
        return DataError(field, value, "this host does not have the file", allowed, do)
    do = "remove that file and start again"
    return DataError(field, value, f"{path} cannot be read", one_line(str(error))[:200], do)
