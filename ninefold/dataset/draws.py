"""The generators of Python, NumPy and torch, seeded for an item and restored after a batch."""

from __future__ import annotations

import random
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any

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


def seeded_once(words: Iterable[int]) -> Callable[[], str | None]:
    """Seed these generators; returns a function that names one which was drawn from since.

    It draws the next numbers, to compare them: a tenth of the time of comparing states.
    """
    torch = sys.modules.get("torch")

    def following() -> dict[str, Any]:
        found: dict[str, Any] = {"random": random.getrandbits(64)}
        found["numpy.random"] = np.random.bytes(8)
        if torch is not None:
            found["torch"] = int(torch.randint(2**62, (), device="cpu"))
        return found

    seed_by(words)
    expected = following()
    seed_by(words)
    return lambda: next((n for n, value in following().items() if value != expected[n]), None)


def seeds(seed: int, epoch: int, rows: Rows) -> list[list[int]]:
    """What the generators are seeded by for each row: two numbers of 32 bits each."""
    return [
        np.random.SeedSequence((seed, epoch, row)).generate_state(2).tolist()
        for row in rows.tolist()
    ]
