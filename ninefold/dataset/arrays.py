"""Arrays of examples: in memory, or lazy, so that a row is read when it is indexed."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, Protocol

import numpy as np
import numpy.typing as npt

from ninefold.tree import Tree

Reading = Generator[tuple[Tree, Tree], None, None]  # of inputs and targets of batches
# Of the row numbers of batches, the seed and epoch that draw them, and whether to read them ahead.
Reader = Callable[..., Reading]
Split = Literal["train", "val", "test"]
Rows = npt.NDArray[np.int64]


class Array(Protocol):
    """Rows of one shape and dtype: a NumPy array, or what reads its rows when they are indexed.

    An array of row numbers returns these rows in memory, a slice a part that is still unread.
    """

    @property
    def shape(self) -> tuple[int, ...]: ...
    def __len__(self) -> int: ...
    def __getitem__(self, rows: Any, /) -> Any: ...


class LazyArray(ABC):
    """A lazy array: its rows are read when they are indexed."""

    @property
    @abstractmethod
    def shape(self) -> tuple[int, ...]: ...

    @abstractmethod
    def read(self, rows: Rows) -> npt.NDArray[Any]:
        """The rows of these numbers, int64 [n]. Raises DataError if one cannot be used."""

    def __len__(self) -> int:
        return self.shape[0]

    def __getitem__(self, rows: Rows | slice, /) -> Any:
        if isinstance(rows, slice):
            return Selected(self, np.arange(len(self))[rows])
        return self.read(rows)


class FileArray(LazyArray):
    """Examples in files, each decoded to an array of one size when it is read.

    paths: the file, or the files, of each example. size: of what it is decoded to.
    """

    paths: Sequence[Any]
    size: tuple[int, ...]

    @abstractmethod
    def decoded(self, path: Any) -> npt.NDArray[Any]:
        """One of `paths` as an array [*size]. Raises DataError."""

    if TYPE_CHECKING:  # a field of some subclasses: a property here would be its default

        @property
        def dtype(self) -> npt.DTypeLike: ...

    @property
    def shape(self) -> tuple[int, ...]:
        return (len(self.paths), *self.size)

    def read(self, rows: Rows) -> npt.NDArray[Any]:
        examples = np.empty((len(rows), *self.size), self.dtype)
        for example, row in zip(examples, rows.tolist(), strict=True):
            example[:] = self.decoded(self.paths[row])
        return examples


@dataclass(frozen=True)
class Selected(LazyArray):
    """Some rows of an array, in the order of `rows` (int64 [n])."""

    array: Array
    rows: Rows

    @property
    def shape(self) -> tuple[int, ...]:
        return (len(self.rows), *self.array.shape[1:])

    def read(self, rows: Rows) -> npt.NDArray[Any]:
        found: npt.NDArray[Any] = self.array[self.rows[rows]]
        return found


@dataclass(frozen=True)
class ArraySpec:
    """The shape of an array of an example, as a leaf of a tree."""

    shape: tuple[int, ...]


def specs(shape: Any) -> Tree:
    """`dataset.shape` as a tree of ArraySpec: of [[3], [4]] two, of [3, 4] one."""
    if isinstance(shape, Mapping):
        return {str(key): specs(value) for key, value in shape.items()}
    if any(not isinstance(number, int) for number in shape):
        return tuple(map(specs, shape))
    return ArraySpec(tuple(shape))
