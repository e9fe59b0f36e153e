"""The memory that training takes: the most on GPUs, and what the tensors of a run need."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import torch
from torch import Tensor, nn

from ninefold.engine.parallel import Parallel, Place, gather, here, size_of

KINDS = ("parameters", "gradients", "optimizer", "buffers")


def memory_by_kind(
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    average: Mapping[str, Tensor],
    parallel: Parallel,
    place: Place,
) -> dict[str, int]:
    """Bytes that the largest process holds between steps, for each of KINDS; gradients in a step.

    optimizer: of its state, which it has after a step, and of the moving averages.
    Every process must call it.
    """
    states = [value for state in optimizer.state.values() for value in state.values()]
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    kinds: list[Iterable[object]] = [
        model.parameters(),
        trained,
        [*states, *average.values()],
        model.buffers(),
    ]
    sizes = [sum(size_of(here(t)) for t in kind if isinstance(t, Tensor)) for kind in kinds]
    rows = gather(torch.tensor(sizes, device=place.device), parallel, place)
    largest = rows[int(rows.sum(dim=1).argmax())]
    return dict(zip(KINDS, largest.tolist(), strict=True))
