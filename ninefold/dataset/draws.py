"""The generators of Python, NumPy and torch, seeded for an item and restored after a batch."""

from __future__ import annotations

import random
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np

from ninefold.dataset.arrays import Rows

WORD = 0xFFFFFFFF  # the bits of a word


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
    seed_torch((first, second))


def seed_torch(words: Iterable[int]) -> None:
    """Seed torch's CPU generator alone, as `seed_by` does, in a fifth of the time."""
    first, second = words
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
    """What SeedSequence((seed, epoch, row)).generate_state(2) is for each row: two numbers each.

    NumPy's own takes 10 µs for each. The algorithm is seed_seq_fe of M. E. O'Neill (2015,
    "Developing a seed_seq alternative") with a pool of four words, as NumPy has it. Rows are below
    2^32: an epoch's order of more would not fit into memory.
    """
    entropy = [*_words(seed), *_words(epoch), rows.astype(np.uint32)]
    entropy += [0] * (4 - len(entropy))
    hashed = _hashing(0x43B0D7E5, 0x931E8875)
    pool = [hashed(word) for word in entropy[:4]]
    for source in range(4):
        for into in range(4):
            if source != into:
                pool[into] = _mixed(pool[into], hashed(pool[source]))
    for word in entropy[4:]:
        pool = [_mixed(each, hashed(word)) for each in pool]
    hashed = _hashing(0x8B51F9DD, 0x58F38DED)
    found: list[list[int]] = np.stack([hashed(each) for each in pool[:2]], axis=1).tolist()
    return found


def _words(number: int) -> list[Any]:
    """The 32-bit words of a number, the lowest first."""
    found = [number & WORD]
    while number := number >> 32:
        found.append(number & WORD)
    return found


# Words are numbers, or arrays of uint32, whose products are cut to 32 bits anyway.


def _hashing(constant: int, factor: int) -> Callable[[Any], Any]:
    def hashed(word: Any) -> Any:
        nonlocal constant
        found = word ^ constant
        constant = constant * factor & WORD
        found = _product(found, constant)
        return found ^ (found >> 16)

    return hashed


def _mixed(one: Any, other: Any) -> Any:
    found = _product(one, 0xCA01F9DD) - _product(other, 0x4973F715)
    found = found & WORD if isinstance(found, int) else found
    return found ^ (found >> 16)


def _product(word: Any, factor: int) -> Any:
    return word * factor & WORD if isinstance(word, int) else word * np.uint32(factor)
