"""Nested containers of tensors, such as the content of a checkpoint: copies with other tensors."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from torch import Tensor


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
