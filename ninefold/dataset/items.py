"""Items of a map-style dataset of the user as arrays, with draws of their own in each epoch.

The random generators of the process are seeded for each item. So one thread of a process reads.
"""

from __future__ import annotations

import random
import sys
import threading
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from ninefold.dataset.arrays import LazyArray, Rows
from ninefold.dataset.layout import Layout
from ninefold.errors import DataError, Failure, by_signal, error_text, memory_failure, users_frame
from ninefold.tree import Tree, filled, leaves

LOOKED_AT = 8  # items that are looked at before the start
COMPARED = 16  # items that are read in two epochs to see whether they may be cached
MAX_ITEMS = 2**32  # their numbers seed generators as 32 bits


class Items:
    """The items of a user's dataset, read and put into arrays a batch at a time.

    layout: what they have, as item 0 says.
    """

    def __init__(self, data: Any, layout: Layout) -> None:
        """layout: as the configuration says. Raises DataError, ConfigError."""
        self._data, self.layout = data, layout
        try:
            self._count = len(data)
        except Exception as error:
            raise raised(layout.field, layout.data, "its length", error) from error
        if not 0 < self._count < MAX_ITEMS:
            wrong = f"it has {self._count or 'no'} items"
            raise layout.wrong(wrong, f"1 to {MAX_ITEMS} can be shuffled", "see its arguments")
        self._kept: dict[int, tuple[Any, list[npt.NDArray[Any] | None]]] = {}
        with generators(0, 0):
            seed_by((0, 0))
            self.layout = layout.of_first(self._raw(0))

    def __len__(self) -> int:
        return self._count

    def returned_input(self) -> Any:
        """The input of item 0 as the class returns it. Raises DataError."""
        with generators(0, 0):
            seed_by((0, 0))
            return self.layout.pair(0, self._raw(0))[0]

    def columns(self) -> tuple[Tree, Tree]:
        """Inputs and targets as lazy arrays, in trees like those of an item."""
        columns = [Column(self, part) for part in range(len(self.layout.kinds))]
        inputs, targets = filled((self.layout.inputs, self.layout.targets), columns)
        return inputs, targets

    def part(self, part: int, rows: Rows, seed: int, epoch: int) -> npt.NDArray[Any]:
        """The values of one of `kinds` of these items; the thread keeps the others for later.

        So an item is read once for all of them, with the same draws.
        """
        key, thread = (rows.tobytes(), seed, epoch), threading.get_ident()
        before, parts = self._kept.pop(thread, (None, []))
        if before != key or parts[part] is None:
            with generators(seed, epoch):
                parts = [*self.read(rows, seed, epoch)]
        found, parts[part] = parts[part], None
        if any(other is not None for other in parts):
            self._kept[thread] = key, parts
        assert found is not None
        return found

    def read(self, rows: Rows, seed: int, epoch: int) -> Sequence[npt.NDArray[Any]]:
        """The values of all `kinds` of these items; leaves the generators as the last item does."""
        found = [np.empty((len(rows), *kind.shape), kind.dtype) for kind in self.layout.kinds]
        words = seeds(seed, epoch, rows)
        for place, number in enumerate(rows.tolist()):
            seed_by(words[place])
            values = self.layout.arrays(number, self._raw(number))
            for array, value in zip(found, values, strict=True):
                array[place] = value
        return found

    def require_usable(self) -> None:
        """Raise DataError if one of those that are looked at is no use, or if they are masks with
        nothing to learn.
        """
        targets = self.looked_at()
        numbers = self.layout.numbers
        if self.layout.masked and numbers is not None:
            found = set(np.unique(targets).tolist())
            if wrong := numbers.nothing_to_learn(found, len(targets)):
                raise self.layout.wrong(*wrong)

    def looked_at(self) -> npt.NDArray[Any]:
        """The last value of the first items, and of some all over the set: most often the target.

        Raises DataError if one of them is no use.
        """
        last = len(self) - 1
        first, spread = np.arange(LOOKED_AT // 2), np.linspace(0, last, LOOKED_AT // 2)
        rows = np.unique(np.append(first.clip(max=last), spread.astype(np.int64)))
        return self.part(len(self.layout.kinds) - 1, rows, 0, 0)

    def require_no_random_transforms(self, cache: str) -> None:
        """Raise DataError if an item differs when it is read again, which dataset.cache forbids.

        The first items are compared: a transform that changes half of them is missed once in 2^16.
        """
        rows = np.arange(min(COMPARED, len(self)))
        changed: list[int] = []
        for part in range(len(leaves(self.layout.inputs))):
            first, second = (self.part(part, rows, 0, epoch) for epoch in (0, 1))
            changed += [n for n in rows.tolist() if (first[n] != second[n]).any()]
        if changed:
            raise self.layout.wrong(
                f"dataset.cache={cache}, but item {min(changed)} is another when it is read again",
                "it has random transforms, which a cache would end",
                "leave dataset.cache out, or take them out of the class",
            )

    def _raw(self, number: int) -> Any:
        """What the class returns. Raises DataError."""
        try:
            return self._data[number]
        except BaseException as error:
            if by_signal(error):
                raise
            raise raised(self.layout.field, self.layout.data, f"item {number}", error) from error


@dataclass(frozen=True)
class Column(LazyArray):
    """The values at one place of items: number `part` of their `kinds`.

    seed, epoch: what their random transforms are drawn by.
    """

    items: Items
    part: int
    seed: int = 0
    epoch: int = 0

    @property
    def shape(self) -> tuple[int, ...]:
        return (len(self.items), *self.items.layout.kinds[self.part].shape)

    def read(self, rows: Rows) -> npt.NDArray[Any]:
        return self.items.part(self.part, rows, self.seed, self.epoch)

    def varies(self) -> bool:
        return True

    def in_epoch(self, seed: int, epoch: int) -> Column:
        """The same items with the draws of this epoch."""
        return replace(self, seed=seed, epoch=epoch)


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


def first_cause(error: BaseException) -> BaseException:
    """The error at the beginning of the chain of causes of `error`."""
    while error.__cause__ is not None:
        error = error.__cause__
    return error


def raised(field: str, target: str, what: str, error: BaseException) -> Failure:
    """The failure for an error of the user's class: its type, file and line.

    what: what was asked of the class.
    """
    if isinstance(error, Failure):
        return error
    if exhausted := memory_failure(error, f"{target} was being read"):
        return exhausted
    frame = users_frame(error)
    where = "no line of the class took part"
    if frame is not None:
        where = f"{frame.filename}:{frame.lineno} in {frame.name}: {frame.line}"
    do = "correct it (the run's log, or HYDRA_FULL_ERROR=1 without one, has the traceback)"
    return DataError(field, target, f"{what} raised {error_text(error)}", where, do)
