"""Items of a map-style dataset of the user as arrays, with draws of their own in each epoch.

The random generators of the process are seeded for each item. So one thread of a process reads, or
the class draws nothing from them.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt
from PIL import Image

from ninefold.dataset.arrays import Rows, Unread
from ninefold.dataset.class_numbers import BLACK_AND_WHITE, ClassNumbers
from ninefold.dataset.draws import drawn, generators, seed_by, seeds
from ninefold.errors import DataError, Failure, memory_failure, users_frame, users_line

Ask = Callable[[Rows, int, int], Sequence[npt.NDArray[Any]]]
Empty = Callable[[tuple[int, ...], Any], npt.NDArray[Any]]

LOOKED_AT = 8  # items whose masks are looked at before the start
DIVIDE = "divide black and white masks by 255 in the class"
COMPARED = 16  # items that are read in two epochs to see whether they may be cached


class Items:
    """The items of a user's dataset, checked and put into arrays a batch at a time.

    target_shape, target_dtype: of one target, as the first item has it.
    """

    def __init__(
        self,
        data: Any,
        shape: tuple[int, ...],
        numbers: ClassNumbers,
        keys: Sequence[str] | None,
        field: str,
        target: str,
        log: str,
        draws: bool = True,
        ask: Ask | None = None,
    ) -> None:
        """shape, keys: see Mapped. field, target: the key and the class, for errors.

        numbers: of the classes, and of void in masks.
        log: where the traceback of an error in the class can be read.
        draws: whether items may draw from the generators of the process.
        ask: a worker process for rows of an epoch, instead of reading them here.
        Raises DataError, and ConfigError where the items are masks that have no such numbers.
        """
        self._data, self.shape, self._numbers, self._keys = data, shape, numbers, keys
        self._field, self._target, self._log = field, target, log
        self._draws, self._ask = draws, ask
        try:
            self._count = len(data)
        except Exception as error:
            raise raised(field, target, "its length", error, log) from error
        if not self._count:
            raise self._wrong("it has no items", "at least one is needed", "see its arguments")
        self._kept: dict[int, tuple[Any, list[npt.NDArray[Any] | None]]] = {}
        self.dtype: Any = None
        self.target_dtype: Any = None
        self.target_shape: tuple[int, ...] = ()
        with generators(0, 0):
            image, label = self._item(0)
        self.dtype, self.target_dtype, self.target_shape = image.dtype, label.dtype, label.shape

    def __len__(self) -> int:
        return self._count

    @property
    def in_processes(self) -> bool:
        return self._ask is not None

    def part(self, part: int, rows: Rows, seed: int, epoch: int) -> npt.NDArray[Any]:
        """Inputs (part 0) or targets (1) of these items; a thread keeps the others for its next
        call.

        So an item is read once for both, with the same draws.
        """
        key, thread = (rows.tobytes(), seed, epoch), threading.get_ident()
        before, parts = self._kept.pop(thread, (None, []))
        if before != key or parts[part] is None:
            parts = [*self._read(rows, seed, epoch)]
        found, parts[part] = parts[part], None
        if any(other is not None for other in parts):
            self._kept[thread] = key, parts
        assert found is not None
        return found

    def _read(self, rows: Rows, seed: int, epoch: int) -> Sequence[npt.NDArray[Any]]:
        if self._ask is not None:
            return self._ask(rows, seed, epoch)
        with generators(seed, epoch) if self._draws else nullcontext():
            return self.read(rows, seed, epoch)

    def read(
        self,
        rows: Rows,
        seed: int,
        epoch: int,
        empty: Empty = np.empty,
        note: Callable[[int], None] | None = None,
    ) -> Sequence[npt.NDArray[Any]]:
        """Inputs and targets of these items; it leaves the generators as the last item does.

        empty: makes the arrays. note: called with the number of each item before it is read.
        """
        inputs = empty((len(rows), *self.shape), self.dtype)
        targets = empty((len(rows), *self.target_shape), self.target_dtype)
        words = seeds(seed, epoch, rows) if self._draws else None
        for place, number in enumerate(rows.tolist()):
            if words is not None:
                seed_by(words[place])
            if note is not None:
                note(number)
            inputs[place], targets[place] = self._item(number)
        return inputs, targets

    def require_no_random_transforms(self, cache: str) -> None:
        """Raise DataError if an item differs from one epoch to the next, which a cache would end.

        The first items are compared: a transform that changes half of them is missed once in 2^16.
        """
        rows = np.arange(min(COMPARED, len(self)))
        first, second = (self.part(0, rows, 0, epoch) for epoch in (0, 1))
        changed = [number for number in rows.tolist() if (first[number] != second[number]).any()]
        if changed:
            raise self._wrong(
                f"dataset.cache={cache} would keep item {changed[0]} as it is in the first epoch",
                "it has random transforms: it differs in the second",
                "leave dataset.cache out, or take them out of the class",
            )

    def require_no_draws(self) -> None:
        """Raise DataError if an item draws from the generators of the process.

        Threads would draw from them in any order. One that draws rarely is missed.
        """
        for number in range(min(COMPARED, len(self))):
            with generators(0, 0):
                used = drawn()
                self._item(number)
                if (name := used()) is not None:
                    raise self._wrong(
                        f"dataset.thread_safe=true, but item {number} draws from {name}",
                        "threads would share that generator; a class that draws nothing from "
                        "random, numpy.random and torch is allowed",
                        "leave dataset.thread_safe out: loader.workers are processes then",
                    )

    def require_several_classes(self) -> None:
        """Raise DataError if the first masks hold 0 and 255 alone, which are one class and void."""
        if self._numbers.ignore != 255 or self.target_dtype not in (np.uint8, np.int16):
            return
        rows = np.arange(min(LOOKED_AT, len(self)))
        found = set(np.unique(self.part(1, rows, 0, 0)).tolist())
        if 255 in found and found <= BLACK_AND_WHITE:
            raise self._wrong(
                f"{len(rows)} masks hold the values {', '.join(map(str, sorted(found)))} only",
                "255 is void, as dataset.ignore=255, so that one class is left",
                DIVIDE,
            )

    def _item(self, number: int) -> tuple[npt.NDArray[Any], npt.NDArray[Any]]:
        """Item `number` as arrays. Raises DataError."""
        try:
            item = self._data[number]
        except (Exception, SystemExit) as error:
            raise raised(self._field, self._target, f"item {number}", error, self._log) from error
        image, target = self._pair(number, item)
        return self._input(number, image), self._label(number, target)

    def _pair(self, number: int, item: Any) -> tuple[Any, Any]:
        keys = self._keys
        if isinstance(item, Mapping):
            if keys is None or len(keys) != 2:
                raise self._wrong(
                    f"item {number} is a mapping",
                    f"it has {', '.join(map(str, item))}",
                    "set dataset.keys=[INPUT,TARGET]",
                )
            missing = [key for key in keys if key not in item]
            if missing:
                raise self._wrong(
                    f"item {number} has no {missing[0]}",
                    f"it has {', '.join(map(str, item))}",
                    "correct dataset.keys",
                )
            item = tuple(item[key] for key in keys)
        if not isinstance(item, tuple | list) or len(item) < 2 or item[1] is None:
            raise self._wrong(
                f"item {number} has no target",
                f"it is {described(item)}",
                "return (input, target), or a mapping with dataset.keys",
            )
        if len(item) > 2:
            raise self._wrong(
                f"item {number} has {len(item)} values",
                "(input, target) is taken",
                "return a mapping and name two with dataset.keys, or drop the others",
            )
        return item[0], item[1]

    def _input(self, number: int, value: Any) -> npt.NDArray[Any]:
        array = self._array(number, value, "input")
        if isinstance(value, Image.Image):
            if value.mode not in ("L", "RGB"):
                raise self._wrong(
                    f"item {number} is a PIL image of mode {value.mode}",
                    "L and RGB are allowed",
                    'return image.convert("RGB")',
                )
            array = array if array.ndim == 2 else array.transpose(2, 0, 1)
        shape = self.shape
        if array.shape != shape:
            if array.shape == (*shape[1:], shape[0]):
                array = np.moveaxis(array, -1, 0)
            elif (1, *array.shape) == shape:
                array = array[None]
            else:
                raise self._wrong(
                    f"item {number} is {list(array.shape)}, dataset.shape {list(shape)}",
                    "channels may come first or last",
                    "resize it in the class, or correct dataset.shape",
                )
        if array.dtype != np.uint8 and array.dtype.kind != "f":
            raise self._wrong(
                f"item {number} is {array.dtype}",
                "uint8 and floats are allowed",
                "convert it in the class",
            )
        dtype = array.dtype if array.dtype == np.uint8 else np.dtype(np.float32)
        if self.dtype not in (None, dtype):
            raise self._wrong(
                f"item {number} is {dtype}, item 0 {self.dtype}",
                "all are uint8 or all are floats",
                "convert them in the class",
            )
        return array.astype(dtype, copy=False)

    def _label(self, number: int, value: Any) -> npt.NDArray[Any]:
        array, shape = self._array(number, value, "target"), self.shape
        if array.dtype.kind in "iub" and array.ndim == 0:
            array = self._class(number, int(array))
        elif array.dtype.kind in "iub" and array.shape == shape[1:]:
            array = self._mask(number, array)
        elif array.dtype.kind == "f":
            array = array.astype(np.float32)
        else:
            raise self._wrong(
                f"the target of item {number} is {array.dtype} {list(array.shape)}",
                f"a class, a mask {list(shape[1:])} of integers or points of floats is allowed",
                "convert it in the class",
            )
        kind = (array.dtype, array.shape)
        if self.target_dtype is not None and kind != (self.target_dtype, self.target_shape):
            raise self._wrong(
                f"the target of item {number} is {array.dtype} {list(array.shape)}",
                f"that of item 0 is {self.target_dtype} {list(self.target_shape)}",
                "give all of them one shape",
            )
        return array

    def _mask(self, number: int, stored: npt.NDArray[Any]) -> npt.NDArray[Any]:
        if self.target_dtype is None:
            self._numbers.require_usable()
        found = self._numbers.of(stored)
        if found.min() < 0:
            name, unit = f"of item {number}", "pixels" if stored.ndim == 2 else "voxels"
            raise self._wrong(*self._numbers.mistake(name, stored, unit, DIVIDE))
        return found.astype(self._numbers.dtype)

    def _class(self, number: int, label: int) -> npt.NDArray[np.int64]:
        classes = self._numbers.classes
        if not 0 <= label < classes:
            raise DataError(
                "dataset.classes",
                classes,
                f"item {number} of {self._field} has the class {label}",
                f"0 to {classes - 1} are allowed",
                f"set dataset.classes={label + 1} or more" if label >= 0 else "count from 0",
            )
        return np.array(label, np.int64)

    def _array(self, number: int, value: Any, what: str) -> npt.NDArray[Any]:
        """`value` as an array: tensors on the CPU and PIL images have NumPy's protocol."""
        try:
            array = np.asarray(value)
            wrong = "" if array.dtype.kind in "biuf" else described(value)
        except Exception as error:  # a tensor on a GPU, one that requires grad, a ragged list
            wrong = f"no array ({error})"
        if wrong:
            raise self._wrong(
                f"the {what} of item {number} is {wrong}",
                "a PIL image, an array of numbers or a tensor on the CPU is allowed",
                "convert it in the class",
            )
        return array

    def _wrong(self, wrong: str, found: str, do: str) -> DataError:
        return DataError(self._field, self._target, f"{wrong}; {found}; {do}")


@dataclass(frozen=True)
class Column(Unread):
    """The inputs (part 0) or the targets (1) of items.

    seed, epoch: what their random transforms are drawn by.
    """

    items: Items
    part: int
    seed: int = 0
    epoch: int = 0

    @property
    def shape(self) -> tuple[int, ...]:
        one = self.items.target_shape if self.part else self.items.shape
        return (len(self.items), *one)

    def read(self, rows: Rows) -> npt.NDArray[Any]:
        return self.items.part(self.part, rows, self.seed, self.epoch)

    def varies(self) -> bool:
        return True

    def in_processes(self) -> bool:
        return self.items.in_processes

    def in_epoch(self, seed: int, epoch: int) -> Column:
        """The same items with the draws of this epoch."""
        return replace(self, seed=seed, epoch=epoch)


def described(value: Any) -> str:
    """The type of `value`, with its length if it is a sequence."""
    of = f" of {len(value)}" if isinstance(value, tuple | list) else ""
    return f"a {type(value).__name__}{of}"


def first_cause(error: BaseException) -> BaseException:
    """The error at the beginning of the chain of causes of `error`."""
    while error.__cause__ is not None:
        error = error.__cause__
    return error


def raised(field: str, target: str, what: str, error: BaseException, log: str) -> Failure:
    """The failure for an error of the user's class: its type, file and line.

    what: what was asked of the class. log: where the traceback is.
    """
    if isinstance(error, Failure):
        return error
    if exhausted := memory_failure(error, f"{target} was being read"):
        return exhausted
    frame = users_frame(error)
    where = "no line of the class took part"
    if frame is not None:
        where = f"{users_line(error)} in {frame.name}: {frame.line}"
    said = f"{type(error).__name__}: {error}".rstrip(": ")
    return DataError(field, target, f"{what} raised {said}; {where}; correct it; {log}")
