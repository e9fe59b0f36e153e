"""The generators of Python, NumPy and torch, seeded for an item and restored after a batch."""

from __future__ import annotations

import random
import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager

import numpy as np

from ninefold.dataset.arrays import Rows


@contextmanager
def generators(*key: int) -> Iterator[None]:
    """Seed random, NumPy's and torch's CPU generators by `key`; restore them after the block.

    Dropout draws from torch's generator too: it goes on as if nothing had been read.
    """
    torch = sys.modules.get("torch")  # the launcher has not imported it, the class may have
    before = torch.default_generator.get_state() if torch else None
    pythons, numpys = random.getstate(), np.random.get_state(legacy=False)
    assert isinstance(numpys, dict)
    numpys["state"]["key"] = numpys["state"]["key"].tolist()  # set 30 times as fast as an array
    seed_by(np.random.SeedSequence(key).generate_state(2))
    try:
        yield
    finally:
        random.setstate(pythons)
        np.random.set_state(numpys)
        if torch:
            torch.default_generator.set_state(before)


def seed_by(words: Iterable[int]) -> None:
    """Seed these generators by two numbers of 32 bits."""
    first, second = words
    random.seed(int(first) << 32 | int(second))
    np.random.seed(first)
    if torch := sys.modules.get("torch"):
        torch.default_generator.manual_seed(int(first) << 32 | int(second))


def seeds(seed: int, epoch: int, rows: Rows) -> list[list[int]]:
    """What the generators are seeded by for each row: two numbers of 32 bits each."""
    keys = np.array([(seed, epoch, row) for row in rows.tolist()], np.uint32).reshape(-1, 3)
    return [np.random.SeedSequence(key).generate_state(2).tolist() for key in keys]
