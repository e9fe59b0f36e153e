"""Atomic, durable writes of files, checks of untrusted YAML before it is parsed, dotted keys."""

from __future__ import annotations

import json
import math
import os
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

LARGEST_YAML, DEEPEST_YAML = 100_000, 50  # characters, and levels: a job has 3,000 and 4


def write_json(path: Path, content: Any) -> None:
    """Write `path` so that a reader finds the previous file or the whole new one."""
    text = json.dumps(finite(content), indent=2, ensure_ascii=False, allow_nan=False)
    write_durably(path, text.encode() + b"\n")


def stamp(seconds: float) -> str:
    """Format a time.time() as in the JSON files: ISO 8601, UTC."""
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(seconds))


def finite(tree: Any) -> Any:
    """`tree` with None for NaN and infinity, which JSON does not have."""
    if isinstance(tree, float) and not math.isfinite(tree):
        return None
    if isinstance(tree, Mapping):
        return {key: finite(value) for key, value in tree.items()}
    if isinstance(tree, list | tuple):
        return [finite(value) for value in tree]
    return tree


def write_durably(path: Path, data: bytes | memoryview) -> None:
    """Write `data` to `path` atomically, with fsync before the rename."""
    temporary = path.with_name(f".{path.name}.tmp")
    with temporary.open("wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())
    os.replace(temporary, path)
    sync_folder(path.parent)


def sync_folder(folder: Path) -> None:
    """fsync a folder, so that renames in it are durable."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def safe_loader() -> Any:
    """PyYAML's SafeLoader, the one in C where PyYAML was built with libyaml: ten times as fast."""
    import yaml

    return getattr(yaml, "CSafeLoader", yaml.SafeLoader)


def require_plain_yaml(text: str, loader: Any = None) -> None:
    """Raise ValueError if `text` is too long, nested too deeply or holds an alias.

    The text is scanned as a stream of events: a few lines of aliases can expand to gigabytes.
    Raises yaml.YAMLError if it is not YAML. loader: the class it is loaded with; PyYAML's
    SafeLoader.
    """
    import yaml

    if len(text) > LARGEST_YAML:
        raise ValueError(f"it has {len(text)} characters, a job has at most {LARGEST_YAML}")
    depth = 0
    for event in yaml.parse(text, Loader=loader or yaml.SafeLoader):
        if isinstance(event, yaml.AliasEvent):
            raise ValueError("it holds a YAML alias, which a job has no use for")
        depth += isinstance(event, yaml.CollectionStartEvent)
        depth -= isinstance(event, yaml.CollectionEndEvent)
        if depth > DEEPEST_YAML:
            raise ValueError(f"it is nested more than {DEEPEST_YAML} deep")


def flat(tree: Any, prefix: str = "") -> dict[str, Any]:
    """A nested mapping as a mapping of dotted keys; an empty mapping is a value."""
    return dict(_leaves(tree, prefix))


def _leaves(tree: Any, prefix: str) -> Iterator[tuple[str, Any]]:
    if not isinstance(tree, Mapping) or (prefix and not tree):
        yield prefix, tree
        return
    for key, value in tree.items():
        yield from _leaves(value, f"{prefix}.{key}" if prefix else str(key))
