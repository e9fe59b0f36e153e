"""Parameters that a loss depends on and that no optimizer of a run would update."""

from __future__ import annotations

from collections.abc import Iterable

from torch import Tensor
from torch.autograd.graph import Node


def other_parameters(loss: Tensor, known: Iterable[Tensor]) -> list[Tensor]:
    """The leaves of a loss's graph that require a gradient and are not among `known`."""
    own = {id(tensor) for tensor in known}
    nodes, seen, found = [loss.grad_fn], set[Node](), list[Tensor]()
    while nodes:
        if (node := nodes.pop()) is not None and node not in seen:
            seen.add(node)
            nodes += [inner for inner, _ in node.next_functions]
            leaf = getattr(node, "variable", None)  # an AccumulateGrad node has one
            if leaf is not None and id(leaf) not in own:
                found.append(leaf)
    return found
