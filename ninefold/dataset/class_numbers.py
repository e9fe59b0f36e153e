"""Masks as class numbers: what their stored values stand for, and arrays that decode them."""

from __future__ import annotations

import functools
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from ninefold.dataset.arrays import FileArray
from ninefold.dataset.images import ImageTree
from ninefold.errors import ConfigError

BLACK_AND_WHITE = {0, 255}
VALUES = 2**16  # gray levels of a mask of 16 bits
MOST = 2**15 - 1  # of int16


@dataclass(frozen=True)
class ClassNumbers:
    """`classes` classes, and void (pixels that do not count) as the number `ignore`, if any.

    values: what stands for each class in a mask; None: its number.
    """

    classes: int
    ignore: int | None
    values: tuple[int, ...] | None = None

    @property
    def dtype(self) -> type[np.uint8] | type[np.int16]:
        """Of masks: int16 where classes or `ignore` are above 255."""
        return np.uint8 if self.classes <= 255 and (self.ignore or 0) <= 255 else np.int16

    def of(self, stored: npt.NDArray[Any]) -> npt.NDArray[np.int16]:
        """The class of each of these integers, or `ignore`; -1 for values that are not allowed."""
        if stored.dtype != np.uint8:
            known = (stored >= 0) & (stored < VALUES)
            stored = np.where(known, stored, 0).astype(np.int32)  # VALUES is more than int16 holds
            stored[~known] = VALUES
        return np.asarray(table(self.classes, self.ignore, self.values)[stored], np.int16)

    def mistake(
        self, name: str, stored: npt.NDArray[Any], unit: str, black_and_white: str | None = None
    ) -> tuple[str, str, str]:
        """What is wrong with the mask `name`, which holds values that are not allowed.

        Also what is allowed and what to do. unit: what there is a value for, pixels or voxels.
        black_and_white: what to do about masks of 0 and 255 alone.
        """
        wrong = stored[self.of(stored) < 0]
        value, count = Counter(wrong.tolist()).most_common(1)[0]
        and_void = "" if self.ignore is None else f" and ignore={self.ignore}"
        if self.values is not None:
            allowed, do = f"dataset.values={list(self.values)}", "correct dataset.values"
            black_and_white = None
        else:
            allowed = f"0 to {self.classes - 1}"
            do = f"set dataset.classes={int(wrong.max()) + 1}"
        do = f"{do} or dataset.ignore={value}" if 0 <= value <= MOST else "correct the mask"
        if black_and_white and set(np.unique(stored).tolist()) <= BLACK_AND_WHITE:
            do = f"{black_and_white} or set dataset.ignore=255"
        return (
            f"mask {name} has the value {value} in {count:,} {unit}",
            f"{allowed}{and_void} are allowed",
            do,
        )

    def require_usable(self) -> None:
        """Raise ConfigError if there are too many classes, or void is one of them by mistake."""
        if self.classes > MOST:
            raise ConfigError(
                "dataset.classes",
                self.classes,
                f"masks hold numbers of 16 bits; {MOST} classes at most are allowed; lower "
                "dataset.classes",
            )
        # Otherwise a class may be void on purpose, as the 0 of masks that count from 1.
        chosen = self.values is None and self.ignore != 255
        if self.ignore is not None and self.ignore < self.classes and not chosen:
            raise ConfigError(
                "dataset.ignore",
                self.ignore,
                f"it is also one of {self.classes} classes; a number from {self.classes} to "
                f"{MOST}, or null, is allowed; set dataset.ignore={self.classes} or "
                "dataset.ignore=null",
            )


@functools.lru_cache(maxsize=8)
def table(classes: int, ignore: int | None, values: tuple[int, ...] | None) -> npt.NDArray[Any]:
    """The class of each value, `ignore` of void and -1 of all others: int16 [VALUES + 1]."""
    found = np.full(VALUES + 1, -1, np.int16)
    if ignore is not None:
        found[ignore] = ignore
    found[np.arange(classes) if values is None else list(values)] = np.arange(classes)
    return found


@dataclass(frozen=True)
class DecodedMasks(FileArray):
    """Masks in files, decoded to class numbers [n, *size] when they are read."""

    paths: Sequence[str]
    size: tuple[int, ...]
    tree: ImageTree
    numbers: ClassNumbers

    @property
    def dtype(self) -> npt.DTypeLike:
        return self.numbers.dtype
