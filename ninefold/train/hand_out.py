"""Broadcasts the content of a checkpoint, which rank 0 has read, to all processes of a run.

So only rank 0 needs to see the run folder, and its files are read once.
"""

from __future__ import annotations

import io
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from ninefold.engine.parallel import Parallel, Place
from ninefold.engine.state import copied

SPREAD = ("model", "optimizer", "average")  # what `Parallel.load` takes


def handed_out(
    content: Mapping[str, Any] | None, parallel: Parallel, place: Place
) -> Mapping[str, Any]:
    """The `content` of a checkpoint, given on rank 0, on every process: tensors on the CPU.

    Where the strategy `shards`, other ranks get the tensors of SPREAD on the meta device: each
    takes its part of them in `Parallel.load`. Every process must call it.
    """
    if content is not None and place.world_size == 1:
        return content
    received = {}
    for key, value in outline_of(content, parallel, place).items():
        if parallel.shards and key in SPREAD:
            received[key] = value if content is None else content[key]
            continue
        mine = [] if content is None else tensors_of(content[key])
        received[key] = filled(value, mine, parallel, place)
    return received


def tensors_of(tree: Any) -> list[Tensor]:
    """The tensors in `tree`, in its order."""
    found: list[Tensor] = []

    def add(tensor: Tensor) -> Tensor:
        found.append(tensor)
        return tensor

    copied(tree, add)
    return found


def filled(tree: Any, mine: list[Tensor], parallel: Parallel, place: Place) -> Any:
    """`tree` with rank 0's tensors, its own `mine`, in the place of the meta tensors in it."""
    rest = iter(mine)
    return copied(tree, lambda like: sent(next(rest, like), parallel, place))


def outline_of(
    content: Mapping[str, Any] | None, parallel: Parallel, place: Place
) -> dict[str, Any]:
    """`content` of rank 0 with its tensors on the meta device, on every process."""
    file = io.BytesIO()
    if content is not None:
        torch.save(copied(content, lambda t: torch.empty_like(t, device="meta")), file)
    data = torch.frombuffer(bytearray(file.getvalue()), dtype=torch.uint8) if content else None
    size = torch.tensor(0 if data is None else len(data), device=place.device)
    like = torch.empty(int(parallel.total(size)), dtype=torch.uint8, device="meta")
    data = sent(like if data is None else data, parallel, place)
    found: dict[str, Any] = torch.load(io.BytesIO(data.numpy().tobytes()), weights_only=True)
    return found


def sent(tensor: Tensor, parallel: Parallel, place: Place) -> Tensor:
    """`tensor` of rank 0 on every process, on the CPU; the others give one like it, but meta.

    Every process must call it.
    """
    if not tensor.numel():
        return torch.empty(tensor.shape, dtype=tensor.dtype)
    size = tensor.numel() * tensor.element_size()
    if tensor.is_meta:
        data = torch.zeros(size, dtype=torch.uint8)
    else:
        data = tensor.contiguous().reshape(-1).view(torch.uint8)
    # A sum of bytes with zeros: a sum of numbers would not keep the sign of -0.0.
    data = parallel.total(data.to(place.device))
    return tensor if not tensor.is_meta else data.cpu().view(tensor.dtype).view(tensor.shape)
