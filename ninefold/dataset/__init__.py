"""Datasets of labeled images, as bytes: one file and one yaml for each.

Nothing here imports torch, so that the launcher can check a dataset before it starts anything.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, Protocol, overload

import numpy as np
import numpy.typing as npt

from ninefold.errors import DataError

Split = Literal["train", "test"]


Rows = npt.NDArray[np.int64]


class Images(Protocol):
    """uint8 [n, channels, height, width]: an array, or what reads its rows when asked for them."""

    @property
    def shape(self) -> tuple[int, ...]: ...
    def __len__(self) -> int: ...
    @overload
    def __getitem__(self, rows: Rows, /) -> npt.NDArray[np.uint8]: ...
    @overload
    def __getitem__(self, rows: slice, /) -> Images: ...


@dataclass(frozen=True)
class Examples:
    """labels: int64 [n]. names: what the classes are called, where the data itself says."""

    images: Images
    labels: Rows
    names: Sequence[str] = ()

    def __len__(self) -> int:
        return len(self.labels)

    def first(self, count: int | None) -> Examples:
        """The first `count` examples; all of them for None."""
        return Examples(self.images[:count], self.labels[:count], self.names)


class Dataset(Protocol):
    """What the trainer asks of a dataset. `limit` cuts the training split."""

    @property
    def limit(self) -> int | None: ...
    @property
    def classes(self) -> int: ...
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


def checked(name: str, dataset: Dataset, examples: Examples) -> Examples:
    """`examples`, if their shape and labels are what `dataset` says; else DataError."""
    shape = list(examples.images.shape[1:])
    if shape != list(dataset.shape):
        raise DataError(
            "dataset.shape", list(dataset.shape), f"{name} holds other images",
            f"found {shape}", "set dataset.shape to what was found",
        )  # fmt: skip
    low, high = int(examples.labels.min()), int(examples.labels.max())
    if low < 0 or high >= dataset.classes:
        raise DataError(
            "dataset.classes", dataset.classes, f"{name} has labels from {low} to {high}",
            f"labels below {dataset.classes} are allowed", f"set dataset.classes={high + 1}",
        )  # fmt: skip
    return examples
