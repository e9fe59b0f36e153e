"""Nested containers of tensors, such as the content of a checkpoint: copies, and their size."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

CONTAINERS = (Mapping, list, tuple, set)
MOST, DEEPEST = 1_000_000, 100  # containers of a content, and levels: of 10,000 tensors 10,000
SMALL = 1 << 20  # bytes that a tensor may claim whatever its file has: some are expanded


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
