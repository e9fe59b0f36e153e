"""How a run reads its examples: settled alike in all of its processes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch

from ninefold.dataset import Examples
from ninefold.dataset.loader import LoaderPlan, plan_loading
from ninefold.dataset.resident import resident_bytes
from ninefold.engine.parallel import Parallel, Place, gather
from ninefold.machine import available_memory, cores


def reading(
    settings: Mapping[str, Any],
    resident: object,
    sets: Sequence[Examples],
    batch_size: int,
    parallel: Parallel,
    place: Place,
) -> LoaderPlan:
    """How batches of `sets`, of which the first one is trained on, are read.

    settings: the section `loader`. resident: dataset.resident.
    Every process must call it. Raises ResourceError, ConfigError.
    """
    own = plan_loading(
        sets[0],
        max(1, batch_size // place.data_size),
        place,
        workers=settings["workers"],
        share=settings["share"],
        pinned=settings["pinned"],
        free=available_memory(),
        cores=cores(),
    )
    size = resident_bytes(resident, sets, place.device, memory_of(place.device))
    mine = torch.tensor([own.workers, size], device=place.device)
    workers, least = gather(mine, parallel, place).amin(dim=0).tolist()
    if least:  # on all of them
        return replace(own, workers=0, pinned=False, resident=size)
    return replace(own, workers=workers)


def memory_of(device: torch.device) -> tuple[int, int]:
    """The bytes of a GPU, free ones and all; none for a CPU."""
    return torch.cuda.mem_get_info(device) if device.type == "cuda" else (0, 0)
