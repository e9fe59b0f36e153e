"""Whether a file computes what the network does: largest difference, and decisions."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from ninefold.engine.task import Task
from ninefold.errors import NumericsError
from ninefold.extensions.export.graph import Exported, tensors_of
from ninefold.tree import Tree, leaves

ALLOWED, RELATIVE = 1e-4, 1e-6  # the larger: rounding of float32 grows with the outputs
TIE = 1e-5  # where the two best are as close as this, rounding decides between them
AT_ONCE = 16


@dataclass(frozen=True)
class OutputComparison:
    """How outputs of a file compare with those of the network.

    difference: the largest. allowed: the largest that is. decisions: their number, None for a task
    that does not say what it decides. changed: how many are others. samples: whether the network
    draws random numbers, so that it does not return the same for the same input.
    """

    examples: int
    difference: float
    allowed: float
    decisions: int | None
    changed: int
    samples: bool = False

    def require_same(self, name: str) -> None:
        """Raise NumericsError unless the file, of the format `name`, may be used."""
        if not self.difference <= self.allowed:  # NaN is not
            wrong = f"outputs differ by {self.difference:.2g}"
        elif self.changed:
            wrong = f"{self.changed} of {self.decisions} decisions are others"
        else:
            return
        if self.samples:
            raise NumericsError(
                "export",
                name,
                f"{wrong}, as the network samples: it draws other random numbers than the file "
                "does; networks without, and format=safetensors, can be verified",
                "no file was written",
                "return what it samples around unless self.training",
            )
        raise NumericsError(
            "export",
            name,
            f"{wrong}; {self.allowed:.2g} and the same decisions are allowed, on the first "
            f"{self.examples} test examples",
            "no file was written",
            "choose another format",
        )


@torch.no_grad()
def compared(
    source: Exported, opened: Callable[..., Any], task: Task, name: str
) -> OutputComparison:
    """Compare what `opened` and the network return for the examples, in batches of several sizes.

    Raises NumericsError, for the format `name`, if the shapes differ.
    """
    difference, largest, decisions, changed = 0.0, 0.0, None, 0
    choices = getattr(task, "choices", None)
    for rows in batches(len(source)):
        wanted = seeded(source.expected, taken(source.prepared, rows))
        found = seeded(opened, [leaf.contiguous() for leaf in taken(source.inputs, rows)])
        if kinds(found) != kinds(wanted):
            raise NumericsError(
                "export",
                name,
                f"the file returns {kinds(found)}",
                f"the network returns {kinds(wanted)}",
                "choose another format",
            )
        apart = differing(found, wanted)
        difference = apart if apart != apart else max(difference, apart)
        if difference != difference:
            break
        largest = max(largest, *(each.double().abs().max().item() for each in tensors_of(wanted)))
        if choices is not None and isinstance(wanted, Tensor):
            count, others = compared_choices(choices(wanted), choices(found))
            decisions, changed = (decisions or 0) + count, changed + others
    some = taken(source.prepared, slice(2))
    one, other = (tensors_of(seeded(source.expected, some, seed)) for seed in (0, 1))
    return OutputComparison(
        len(source),
        difference,
        max(ALLOWED, RELATIVE * largest),
        decisions,
        changed,
        not all(map(torch.equal, one, other)),
    )


def taken(tree: Tree, rows: slice) -> list[Tensor]:
    """These examples of each leaf."""
    return [leaf[rows] for leaf in leaves(tree)]


def kinds(output: Any) -> str:
    """The dtypes and shapes of the tensors in an output."""
    return ", ".join(f"{each.dtype} {list(each.shape)}" for each in tensors_of(output))


def differing(found: Any, wanted: Any) -> float:
    """The largest difference of two outputs; NaN if there is one."""
    pairs = zip(tensors_of(found), tensors_of(wanted), strict=True)
    apart = [(one.double() - other.double()).abs().max().item() for one, other in pairs]
    return math.nan if any(each != each for each in apart) else max(apart)


def seeded(call: Callable[..., Any], inputs: Sequence[Tensor], seed: int = 0) -> Any:
    """What `call` returns if torch's generator begins with a seed."""
    with torch.random.fork_rng([]):
        torch.manual_seed(seed)
        return call(*inputs)


def compared_choices(expected: Tensor, found: Tensor) -> tuple[int, int]:
    """The number of decisions, the largest along the last dimension, and how many are others.

    Where the two best are as good as equal, either may be chosen.
    """
    best = expected.topk(min(2, expected.shape[-1]))
    others = best.indices[..., 0] != found.argmax(dim=-1)
    tied = best.values[..., 0] - best.values[..., -1] <= TIE * max(1.0, expected.abs().max().item())
    return others.numel(), int((others & ~tied).sum())


def batches(count: int) -> Iterator[slice]:
    """Rows of batches of one, of two and of more examples."""
    first = 0
    for size in (1, 2, *[AT_ONCE] * (count // AT_ONCE + 1)):
        if first < count:
            yield slice(first, min(first + size, count))
        first += size
