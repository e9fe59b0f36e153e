"""Nested containers of tensors, such as the content of a checkpoint: copies, and their size."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor

CONTAINERS = (Mapping, list, tuple, set)
MOST, DEEPEST = 1_000_000, 100  # containers of a content, and levels: of 10,000 tensors 10,000
SMALL = 1 << 20  # bytes that a tensor may claim whatever its file has: some are expanded


def copied(tree: Any, copy: Callable[[Tensor], Tensor]) -> Any:
    """`tree` in new containers, with `copy(tensor)` for each tensor, in a fixed order."""
    return mapped(tree, lambda name, tensor: copy(tensor))


def mapped(tree: Any, change: Callable[[str, Tensor], Tensor], name: str = "") -> Any:
    """`tree` in new containers, with `change(name, tensor)` for each tensor; names are dotted."""
    if isinstance(tree, Tensor):
        return change(name, tree.detach())
    if isinstance(tree, Mapping):
        items = tree.items()
        return {key: mapped(v, change, f"{name}.{key}" if name else str(key)) for key, v in items}
    if isinstance(tree, list | tuple):
        return [mapped(value, change, f"{name}.{index}") for index, value in enumerate(tree)]
    return tree


def require_bounded(tree: Any, size: int) -> None:
    """Raise ValueError if what was read from a file of `size` bytes is far larger than that.

    A few bytes can claim a tensor of any shape, or lists that hold each other without an end.
    """
    left = [(tree, 0)] if isinstance(tree, (Tensor, *CONTAINERS)) else []
    seen = scanned = 0
    while left:
        node, depth = left.pop()
        if isinstance(node, Tensor):
            plain = node.layout == torch.strided and not node.is_meta  # others never fit a model
            if plain and node.numel() * node.element_size() > max(size, SMALL):
                raise ValueError(
                    f"a tensor in it claims {list(node.shape)}, the file {size:,} bytes"
                )
            continue
        inner = node.values() if isinstance(node, Mapping) else node
        seen, scanned = seen + 1, scanned + len(inner)
        if depth > DEEPEST or seen > MOST or scanned > 100 * MOST:
            raise ValueError(f"it is nested over {DEEPEST} deep, or has over {MOST:,} containers")
        left += [(v, depth + 1) for v in inner if isinstance(v, (Tensor, *CONTAINERS))]
