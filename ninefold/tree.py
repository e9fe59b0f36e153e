"""Batches as trees of tensors: a tensor, or a tuple, a list or a dict of such trees.

Nothing here imports torch: the same functions are for trees of arrays, and of other leaves.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

Tree = Any  # a leaf, such as a tensor or an array, or a tuple, a list or a dict of trees


def each(
    function: Callable[..., Any],
    tree: Tree,
    *others: Tree,
    is_leaf: Callable[[Tree], bool] | None = None,
) -> Tree:
    """Return the same tree with `function(leaf, ...)` in place of each leaf (tree_map).

    others: trees like it, or with more in them; their leaves are the further arguments.
    is_leaf: of which containers are leaves, too; None: none.
    """
    if is_leaf is not None and is_leaf(tree):
        return function(tree, *others)
    if isinstance(tree, dict):
        found = copy.copy(tree)  # classes of their own, such as a model's output, stay
        for key in tree:
            further = (other[key] for other in others)
            found[key] = each(function, tree[key], *further, is_leaf=is_leaf)
        return found
    if isinstance(tree, tuple | list):
        together = zip(tree, *others, strict=True)
        values = [each(function, *parts, is_leaf=is_leaf) for parts in together]
        return type(tree)(*values) if hasattr(tree, "_fields") else type(tree)(values)
    return function(tree, *others)


def leaves(tree: Tree) -> list[Any]:
    """The leaves of a tree, in its order."""
    if isinstance(tree, dict | tuple | list):
        values = tree.values() if isinstance(tree, dict) else tree
        return [leaf for value in values for leaf in leaves(value)]
    return [tree]


def is_deeper(tree: Tree, levels: int) -> bool:
    """Whether sequences and mappings are nested more than so many levels deep."""
    if isinstance(tree, Mapping):
        tree = tree.values()
    elif not isinstance(tree, tuple | list):
        return False
    return not levels or any(is_deeper(inner, levels - 1) for inner in tree)


def filled(tree: Tree, values: Iterable[Any]) -> Tree:
    """A tree like `tree`, with `values` as its leaves."""
    given = iter(values)
    return each(lambda _: next(given), tree)


def named(
    tree: Tree, name: str, is_leaf: Callable[[Tree], bool] = lambda tree: False
) -> Iterator[tuple[str, Any]]:
    """The leaves with their names: `name` for a single one, `name[0]`, or `key` of a mapping.

    is_leaf: as of `each`.
    """
    if isinstance(tree, Mapping):
        for key, value in tree.items():
            yield from named(value, str(key), is_leaf)
    elif isinstance(tree, tuple | list) and not is_leaf(tree):
        for number, value in enumerate(tree):
            yield from named(value, f"{name}[{number}]", is_leaf)
    else:
        yield name, tree


def parts_of(tree: Tree) -> str:
    """The keys of a dict, or the number of values of a tuple or a list."""
    if isinstance(tree, dict):
        return f"a dict of {', '.join(map(str, tree))}"
    return f"a tuple of {len(tree)}" if isinstance(tree, tuple | list) else "one value"


def rows(tree: Tree) -> int:
    """Count the examples of a batch."""
    return len(leaves(tree)[0])


def chunks(tree: Tree, count: int) -> Iterator[Tree]:
    """A batch in at most `count` parts of as many examples each, of which the last may be smaller.

    As torch.chunk has them.
    """
    for values in zip(*(leaf.chunk(count) for leaf in leaves(tree)), strict=True):
        yield filled(tree, values)


def moved(tree: Tree, device: Any) -> Tree:
    """A batch on `device`, copied without a wait."""
    return each(lambda leaf: leaf.to(device, non_blocking=True), tree)


def call(function: Callable[..., Any], inputs: Tree) -> Any:
    """Call a network: with a tensor, with the values of a tuple, or with a dict by keyword."""
    if isinstance(inputs, dict):
        return function(**inputs)
    return function(*inputs) if isinstance(inputs, tuple | list) else function(inputs)


def shapes(tree: Tree) -> Tree:
    """The shape of an example of a batch or of arrays: a list of numbers for each leaf.

    A leaf that has no shape, as a number among a model's outputs, stays.
    """
    return each(lambda leaf: list(leaf.shape[1:]) if hasattr(leaf, "shape") else leaf, tree)
