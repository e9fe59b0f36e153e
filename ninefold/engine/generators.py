"""The random generators that training uses: Python's, NumPy's, torch's, and one for each GPU."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import numpy as np
import torch
from torch import Tensor

from ninefold.engine.parallel import RankContext


def seed_generators(seed: int, gpus: Sequence[int] = ()) -> None:
    """Seed every random generator that training uses; those of several `gpus` differ."""
    random.seed(seed)
    np.random.seed(seed % 2**32)
    torch.manual_seed(seed)  # of all GPUs alike: their replicas would drop the same elements
    for index, each in seeds_of(gpus, seed).items():
        torch.cuda.default_generators[index].manual_seed(each)


def seeds_of(gpus: Sequence[int], seed: int) -> dict[int, int]:
    """The seed of each GPU of a process, by its index: the first has the process's own.

    The others are 7919 apart, as the seeds of processes follow each other.
    """
    return {index: seed + 7919 * number for number, index in enumerate(gpus)}


def states(context: RankContext) -> list[Tensor]:
    """The states of the generators, for `set_states`: tensors, as these can be gathered.

    Numbers of Python and NumPy are float64, which has their integers of 32 bits exactly.
    """
    _, integers, gauss = random.getstate()
    array = np.random.get_state(legacy=False)
    keys, position = array["state"]["key"], array["state"]["pos"]
    return [
        torch.tensor([*integers, gauss is not None, gauss or 0.0], dtype=torch.float64),
        torch.tensor([*keys, position, array["has_gauss"], array["gauss"]], dtype=torch.float64),
        torch.get_rng_state(),
        *(torch.cuda.get_rng_state(index) for index in context.gpus),
    ]


def set_states(found: Sequence[Tensor], context: RankContext) -> None:
    """Set the generators to the states that `states` returned."""
    python, array, cpu, *cuda = found
    *integers, has_gauss, gauss = python.tolist()
    random.setstate((3, tuple(map(int, integers)), gauss if has_gauss else None))
    *keys, position, has_gauss, gauss = array.tolist()
    np.random.set_state(
        ("MT19937", np.array(keys, np.uint32), int(position), int(has_gauss), gauss)
    )
    # set_rng_state misreads a view of a larger tensor: it needs a tensor with its own storage.
    torch.set_rng_state(cpu.clone())
    for device, state in zip(context.gpus, cuda, strict=False):
        torch.cuda.set_rng_state(state.clone(), device)


@contextmanager
def fork_rng(context: RankContext) -> Iterator[None]:
    """Seed the generators for the block, and restore them after it (torch.random.fork_rng).

    A network that samples in an evaluation, as a VAE, then draws the same in each, and training
    goes on as if nothing had been drawn, wherever a run was evaluated before.
    """
    before = states(context)
    seed_generators(context.rank, context.gpus)
    try:
        yield
    finally:
        set_states(before, context)
