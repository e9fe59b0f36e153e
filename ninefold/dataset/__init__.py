"""Datasets as bytes: one file and one yaml for each; their splits, and what an example is.

Nothing here imports torch, so that the launcher can check a dataset before it starts anything.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal, Protocol, overload

import numpy as np
import numpy.typing as npt

from ninefold.errors import DataError

Split = Literal["train", "val", "test"]


Rows = npt.NDArray[np.int64]


class Array(Protocol):
    """Rows of one shape and dtype: a NumPy array, or what reads its rows when they are indexed.

    An array of row numbers returns these rows in memory, a slice a part that is still unread.
    """

    @property
    def shape(self) -> tuple[int, ...]: ...
    def __len__(self) -> int: ...
    @overload
    def __getitem__(self, rows: Rows, /) -> npt.NDArray[Any]: ...
    @overload
    def __getitem__(self, rows: slice, /) -> Array: ...


class Unread(ABC):
    """An array whose rows are read when they are indexed."""

    @property
    @abstractmethod
    def shape(self) -> tuple[int, ...]: ...

    @abstractmethod
    def read(self, rows: Rows) -> npt.NDArray[Any]:
        """The rows of these numbers, int64 [n]. Raises DataError if one cannot be used."""

    def __len__(self) -> int:
        return self.shape[0]

    @overload
    def __getitem__(self, rows: Rows, /) -> npt.NDArray[Any]: ...
    @overload
    def __getitem__(self, rows: slice, /) -> Array: ...
    def __getitem__(self, rows: Rows | slice, /) -> npt.NDArray[Any] | Array:
        if isinstance(rows, slice):
            return Selected(self, np.arange(len(self))[rows])
        return self.read(rows)


@dataclass(frozen=True)
class Selected(Unread):
    """Some rows of an array, in the order of `rows` (int64 [n])."""

    array: Array
    rows: Rows

    @property
    def shape(self) -> tuple[int, ...]:
        return (len(self.rows), *self.array.shape[1:])

    def read(self, rows: Rows) -> npt.NDArray[Any]:
        return self.array[self.rows[rows]]


def varies(array: Array) -> bool:
    """Whether the rows of `array` may differ from epoch to epoch: it has a method `in_epoch`."""
    return varies(array.array) if isinstance(array, Selected) else hasattr(array, "in_epoch")


def in_epoch(array: Array, seed: int, epoch: int) -> Array:
    """`array` as training with `seed` reads it in `epoch`; the same where its rows never vary."""
    if isinstance(array, Selected):
        return Selected(in_epoch(array.array, seed, epoch), array.rows)
    found: Array = array.in_epoch(seed, epoch) if hasattr(array, "in_epoch") else array
    return found


@dataclass(frozen=True)
class Examples:
    """Inputs and what is to be predicted of each.

    inputs: uint8 [n, channels, height, width], or uint8 or int16 [n, channels, depth, height,
        width].
    targets: classes int64 [n], masks uint8 or int16 [n, (depth,) height, width], or points
        float32 [n, k, 3], NaN where one is absent.
    names: of the classes or points, where the data itself says.
    """

    inputs: Array
    targets: Array
    names: Sequence[str] = ()

    def __len__(self) -> int:
        return len(self.targets)

    def first(self, count: int | None) -> Examples:
        """The first `count` examples; all of them for None."""
        return Examples(self.inputs[:count], self.targets[:count], self.names)

    def select(self, rows: Rows) -> Examples:
        """The examples of these numbers; images in files stay unread."""
        return Examples(Selected(self.inputs, rows), Selected(self.targets, rows), self.names)

    def in_epoch(self, seed: int, epoch: int) -> Examples:
        """The examples as training reads them in `epoch`, see `in_epoch`."""
        inputs, targets = (in_epoch(array, seed, epoch) for array in (self.inputs, self.targets))
        return Examples(inputs, targets, self.names)


class Dataset(Protocol):
    """What the trainer asks of a dataset. `limit` cuts the training split.

    It may also have `splits`, the names of the splits it has (default: train and test), `val`,
    see `validation`, and these methods:

    preparation(**options) -> Preparation: where its inputs are no images, see
        `ninefold.dataset.preparation`.
    count_classes() -> int: the number of classes, for dataset.classes=null. Called by the launcher
        after `prepare`.
    require_loader(workers): raises ConfigError if loader.workers=`workers` is not for it.
    """

    @property
    def limit(self) -> int | None: ...
    @property
    def classes(self) -> int | None:
        """None: as many as `count_classes` says."""

    @property
    def shape(self) -> Sequence[int]:
        """Channels, height, width."""

    @property
    def mean(self) -> Sequence[float] | None:
        """Per channel, of pixels in 0..1; None leaves pixels in 0..1."""

    @property
    def std(self) -> Sequence[float] | None: ...
    @property
    def flip(self) -> bool: ...
    @property
    def crop(self) -> int:
        """Pixels of padding before a random crop; 0 = none."""

    def prepare(self) -> None:
        """Make the files be there, or raise DataError. Called once, by the launcher."""

    def load(self, split: Split) -> Examples:
        """Raises DataError if the split cannot be read or is not what the configuration says."""


def train_and_val(
    dataset: Dataset, seed: int, load: Callable[[Split], Examples] | None = None
) -> tuple[Examples, Examples | None]:
    """The training split, and a validation split if there is to be one.

    load: in place of the dataset's own, such as that of its cache.

    A dataset that names `val` among its splits has its own. From any other the share `dataset.val`
    of the training examples is drawn by the seed; 0: no validation split. Raises DataError.
    """
    share = getattr(dataset, "val", 0)
    load = load or dataset.load
    train = load("train")
    if "val" in getattr(dataset, "splits", ()):
        if share:
            raise DataError(
                "dataset.val",
                share,
                "the dataset has a validation split; a share is drawn from the training examples "
                "only where there is none; set dataset.val=0 to use the one it has",
            )
        return train, load("val")
    if not share:
        return train, None
    count = max(1, round(share * len(train)))
    if count >= len(train):
        raise DataError(
            "dataset.val",
            share,
            f"no training examples are left; {len(train)} examples found, {count} taken for "
            "validation; lower dataset.val",
        )
    # Three numbers, as two of them, seed and epoch, give the order of an epoch.
    order = np.random.default_rng([seed, 0, 1]).permutation(len(train))
    return train.select(np.sort(order[count:])), train.select(np.sort(order[:count]))


def checked(name: str, dataset: Dataset, examples: Examples) -> Examples:
    """`examples`, if their shape and classes are what `dataset` says. Raises DataError."""
    shape = list(examples.inputs.shape[1:])
    if shape != list(dataset.shape):
        raise DataError(
            "dataset.shape",
            list(dataset.shape),
            f"{name} holds other images; found {shape}; set dataset.shape to what was found",
        )
    targets = np.asarray(examples.targets)
    low, high = int(targets.min()), int(targets.max())
    classes = high + 1 if dataset.classes is None else dataset.classes
    if low < 0 or high >= classes:
        raise DataError(
            "dataset.classes",
            classes,
            f"{name} has labels from {low} to {high}; labels below {classes} are allowed; set "
            f"dataset.classes={high + 1}",
        )
    return examples
