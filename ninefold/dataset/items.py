"""Items of a map-style dataset of the user as arrays, with draws of their own in each epoch.

The random generators of the process are seeded for each item. So one thread of a process reads.
"""

from __future__ import annotations

import random
import sys
import threading
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt
from PIL import Image

from ninefold.dataset.arrays import ArraySpec, LazyArray, Rows, specs
from ninefold.dataset.masks import ClassNumbers
from ninefold.errors import DataError, Failure, by_signal, error_text, memory_failure, users_frame
from ninefold.tree import Tree, each, filled, is_deeper, leaves, named
from ninefold.types import Key

LOOKED_AT = 8  # items that are looked at before the start
CHANNELS = (1, 3, 4)  # that an image may have, where nothing says its shape
NOTHING = np.empty(0, np.float32)  # the target of an item that has none
COMPARED = 16  # items that are read in two epochs to see whether they may be cached
MAX_ITEMS = 2**32  # their numbers seed generators as 32 bits
OF_MAPPINGS = (
    "set dataset.keys=[INPUT,TARGET], [[INPUT,INPUT],TARGET] for several inputs, or [INPUT] for an "
    "input alone"
)
MAX_DEPTH = 32  # of sequences and mappings in an item, one in the other


class Items:
    """The items of a user's dataset, checked and put into arrays a batch at a time.

    inputs, targets: an ArraySpec, or a tree of them (a tuple or a dict), as item 0 has them.
    unlabeled: whether an item is its input alone, which is then the target too.
    masked: whether the target is a mask of class numbers.
    """

    def __init__(
        self,
        data: Any,
        shape: Tree | None,
        numbers: ClassNumbers | None,
        keys: Sequence[Key | Sequence[Key]] | None,
        field: str,
        target: str,
        whole: bool = False,
        of_mappings: str = OF_MAPPINGS,
    ) -> None:
        """shape, keys: see Mapped; shape None: as item 0 has it. field, target: the key and the
        class, for errors.

        numbers: of the classes, and of void in masks; None: there are none, or not known yet.
        whole: an item of any kind is the one argument of the network, without a target. A tuple of
            one value or of numbers stays a tuple, as torch's default_collate has it.
        of_mappings: what to do where items are mappings and no keys are given, for an error.
        Raises DataError, and ConfigError where the items are masks that have no such numbers.
        """
        self._data, self._numbers, self._keys = data, numbers, keys
        parts = [[part] if isinstance(part, Key) else part for part in keys or ()]
        self._flat_keys = [key for part in parts for key in part]
        self._places = any(isinstance(key, int) for key in self._flat_keys)
        self._field, self._target, self._whole = field, target, whole
        self._of_mappings = of_mappings
        try:
            self._count = len(data)
        except Exception as error:
            raise raised(field, target, "its length", error) from error
        if not 0 < self._count < MAX_ITEMS:
            wrong = f"it has {self._count or 'no'} items"
            raise self._wrong(wrong, f"1 to {MAX_ITEMS} can be shuffled", "see its arguments")
        self._kept: dict[int, tuple[Any, list[npt.NDArray[Any] | None]]] = {}
        self.inputs: Tree = None if shape is None else specs(shape)
        self.targets: Tree = None
        self.kinds: list[ArraySpec] = []
        self._plain: tuple[Any, ...] | None = None
        self.unlabeled = self.masked = False
        with generators(0, 0):
            seed_by((0, 0))
            first = self._raw(0)
            both = self._checked(0, first)
        self.inputs, self.targets = each(ArraySpec.of, both)
        self.kinds = leaves((self.inputs, self.targets))
        value: Any = first[0] if isinstance(first, tuple) and type(first[-1]) is int else None
        if hasattr(value, "shape") and [ArraySpec.of(np.asarray(value))] == self.kinds[:-1]:
            self._plain = type(value), value.shape, value.dtype

    def __len__(self) -> int:
        return self._count

    @property
    def shape(self) -> Tree:
        """The shape of an item's input, a list of numbers, or a tree of such."""
        return each(lambda kind: list(kind.shape), self.inputs)

    @property
    def image(self) -> bool:
        """Whether the input is one image or volume: bytes or floats with channels first."""
        kind = self.inputs
        return isinstance(kind, ArraySpec) and is_image(kind)

    def returned_input(self) -> Any:
        """The input of item 0 as the class returns it. Raises DataError."""
        with generators(0, 0):
            seed_by((0, 0))
            return self._pair(0, self._raw(0))[0]

    def columns(self) -> tuple[Tree, Tree]:
        """Inputs and targets as lazy arrays, in trees like those of an item."""
        columns = [Column(self, part) for part in range(len(self.kinds))]
        inputs, targets = filled((self.inputs, self.targets), columns)
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
        found = [np.empty((len(rows), *kind.shape), kind.dtype) for kind in self.kinds]
        words = seeds(seed, epoch, rows)
        for place, number in enumerate(rows.tolist()):
            seed_by(words[place])
            item = self._raw(number)
            values = self._as_the_first(item) or leaves(self._checked(number, item))
            for array, value in zip(found, values, strict=True):
                array[place] = value
        return found

    def require_usable(self) -> None:
        """Raise DataError if one of those that are looked at is no use, or if they are masks with
        nothing to learn.
        """
        targets = self.looked_at()
        if self.masked and self._numbers is not None:
            found = set(np.unique(targets).tolist())
            if wrong := self._numbers.nothing_to_learn(found, len(targets)):
                raise self._wrong(*wrong)

    def looked_at(self) -> npt.NDArray[Any]:
        """The last value of the first items, and of some all over the set: most often the target.

        Raises DataError if one of them is no use.
        """
        last = len(self) - 1
        first, spread = np.arange(LOOKED_AT // 2), np.linspace(0, last, LOOKED_AT // 2)
        rows = np.unique(np.append(first.clip(max=last), spread.astype(np.int64)))
        return self.part(len(self.kinds) - 1, rows, 0, 0)

    def require_no_random_transforms(self, cache: str) -> None:
        """Raise DataError if an item differs when it is read again, which dataset.cache forbids.

        The first items are compared: a transform that changes half of them is missed once in 2^16.
        """
        rows = np.arange(min(COMPARED, len(self)))
        changed: list[int] = []
        for part in range(len(leaves(self.inputs))):
            first, second = (self.part(part, rows, 0, epoch) for epoch in (0, 1))
            changed += [n for n in rows.tolist() if (first[n] != second[n]).any()]
        if changed:
            raise self._wrong(
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
            raise raised(self._field, self._target, f"item {number}", error) from error

    def _as_the_first(self, item: Any) -> tuple[npt.NDArray[Any], int] | None:
        """A tensor or array and a class that are like those of item 0, which were taken as they
        were; None: look closer. It takes a quarter of the time.
        """
        if self._plain is None or type(item) is not tuple or len(item) != 2:
            return None
        value, label = item
        if type(value) is not self._plain[0] or type(label) is not int:
            return None
        if (value.shape, value.dtype) != self._plain[1:]:
            return None
        if self._numbers is not None and not 0 <= label < self._numbers.classes:
            return None
        try:
            return np.asarray(value), label
        except Exception:  # it requires a gradient
            return None

    def _checked(self, number: int, item: Any) -> tuple[Tree, Tree]:
        """The input and the target of an item as arrays. Raises DataError."""
        if is_deeper(item, MAX_DEPTH):
            wrong = f"item {number} is nested more than {MAX_DEPTH} deep, or contains itself"
            raise self._wrong(wrong, f"it is {described(item)}", "return a flatter one")
        value, target = self._pair(number, item)
        # Where one array is expected, a list of lists is one too.
        if not isinstance(self.inputs, ArraySpec) or isinstance(value, Mapping):
            value = self._in_order(number, "input", value, self.inputs)
        one = isinstance(self.inputs, ArraySpec)
        values = [("input", value)] if one else list(named(value, "input"))
        wanted = leaves(self.inputs) if self.inputs else [None] * len(values)
        arrays = [self._input(number, *v, kind) for v, kind in zip(values, wanted, strict=True)]
        inputs = filled(self.inputs or value, arrays)
        if not self.kinds:
            self.unlabeled = target is NOTHING
        target = self._in_order(number, "target", target, self.targets)
        if isinstance(target, dict | tuple):
            target = each(as_it_is, target)
        else:
            target = self._label(number, self._array(number, target, "target"), inputs)
        parts = [*named(inputs, "input"), *named(target, "target")]
        known = self.kinds or [kind for kind in wanted if kind]
        for (name, array), kind in zip(parts, known, strict=False):
            if array.shape != kind.shape or (kind.dtype and array.dtype != kind.dtype):
                raise self._unlike(number, name, ArraySpec.of(array), kind)
        if any(not all(array.shape) and array is not NOTHING for _, array in parts):
            raise self._wrong(
                f"an input or a target of item {number} has no values",
                f"it is {described(item)}",
                "leave it out in the class; an input alone is its own target",
            )
        return inputs, target

    def _pair(self, number: int, item: Any) -> tuple[Any, Any]:
        """Input and target of an item; of an unlabeled one NOTHING in place of a target."""
        if self._whole:
            return (item,), NOTHING
        if isinstance(item, Mapping) or (self._places and isinstance(item, tuple | list)):
            item = self._by_keys(number, item)
        elif self._keys is not None:
            raise self._wrong(
                f"item {number} has no keys",
                f"it is {described(item)}",
                "leave dataset.keys out, or give places in a tuple, as [0,1] or [[0,1],2]",
            )
        elif is_value(item):
            item = (item,)
        if not isinstance(item, tuple | list) or not item or (len(item) > 1 and item[1] is None):
            raise self._wrong(
                f"item {number} has no target",
                f"it is {described(item)}",
                "return (input, target), an input alone, or a mapping with dataset.keys",
            )
        if len(item) > 2:
            raise self._wrong(
                f"item {number} has {len(item)} values",
                "(input, target) is taken",
                "set dataset.keys to the places of input and target, as [0,1], or [[0,1],2] of two "
                "inputs; or return ((one, other), target)",
            )
        return item[0], item[1] if len(item) == 2 else NOTHING

    def _by_keys(self, number: int, item: Any) -> tuple[Any, ...]:
        """What `keys` name in a mapping, or count in a tuple: a value for each of them.

        For a list of names a dict, for a list of places a tuple.
        """
        keys, mapping = self._keys, isinstance(item, Mapping)
        has = f"it has {', '.join(map(str, item)) if mapping else f'{len(item)} values'}"
        if keys is None or len(keys) > 2:
            raise self._wrong(
                f"item {number} is a mapping",
                has,
                self._of_mappings,
            )
        known = item if mapping else range(len(item))
        for key in self._flat_keys:
            if key not in known:
                raise self._wrong(f"item {number} has no {key}", has, "correct dataset.keys")

        def part(of: Any) -> Any:
            if isinstance(of, Key):
                return item[of]
            return {key: item[key] for key in of} if mapping else tuple(item[key] for key in of)

        return tuple(map(part, keys))

    def _in_order(self, number: int, name: str, value: Any, like: Tree) -> Tree:
        """`value` as a tree of arrays and PIL images, in the order of `like`, if that is known.

        Raises DataError unless it has the same keys, and as many values.
        """
        found = self._structure(number, value, name)
        if like is None:
            return found
        if skeleton(found) != skeleton(like):
            raise self._unlike(number, name, parts_of(found), parts_of(like))
        return each(lambda _, leaf: leaf, like, found)

    def _structure(self, number: int, value: Any, name: str) -> Tree:
        """`value` as a tree of arrays and PIL images: a dict, a tuple, or one of them alone."""
        if isinstance(value, Mapping) and value:
            return {str(k): self._structure(number, inner, str(k)) for k, inner in value.items()}
        several = isinstance(value, tuple) and self._whole and len(value) > 0
        if several or (isinstance(value, tuple | list) and any(map(is_several, value))):
            parts = enumerate(value)
            return tuple(self._structure(number, inner, f"{name}[{n}]") for n, inner in parts)
        return value if isinstance(value, Image.Image) else self._array(number, value, name)

    def _unlike(self, number: int, name: str, found: object, like: object) -> DataError:
        """The failure for an input or a target that differs from what the others have."""
        return self._wrong(
            f"the {name} of item {number} is {found}",
            f"{'item 0' if self.kinds else 'dataset.shape'} has {like}",
            "resize, pad or convert it in the class: all items have the keys, shapes and dtypes of "
            "the first, images with channels first or last",
        )

    def _input(
        self, number: int, name: str, value: Any, wanted: ArraySpec | None
    ) -> npt.NDArray[Any]:
        """One input as an array, with channels first; None: nothing says its shape."""
        array = self._array(number, value, name)
        if isinstance(value, Image.Image):
            if value.mode not in ("L", "RGB"):
                raise self._wrong(
                    f"the {name} of item {number} is a PIL image of mode {value.mode}",
                    "L and RGB are allowed",
                    'return image.convert("RGB")',
                )
            array = array if array.ndim == 2 else array.transpose(2, 0, 1)
        elif wanted is None and array.dtype == np.uint8 and array.ndim == 3:
            last = array.shape[2] in CHANNELS and array.shape[0] not in CHANNELS
            array = np.moveaxis(array, -1, 0) if last else array
        shape = array.shape if wanted is None else wanted.shape
        if wanted is None and array.ndim == 2 and array.dtype == np.uint8:
            shape = (1, *array.shape)  # a gray image
        if array.shape != shape and array.shape == (*shape[1:], *shape[:1]):
            array = np.moveaxis(array, -1, 0)
        elif (1, *array.shape) == shape:
            array = array[None]
        return as_it_is(array)

    def _label(self, number: int, array: npt.NDArray[Any], inputs: Tree) -> npt.NDArray[Any]:
        """A target: a class and a mask of an image are checked, others are not."""
        image = isinstance(inputs, np.ndarray) and is_image(ArraySpec.of(inputs))
        if array.dtype.kind not in "iub":
            return as_it_is(array)
        if array.ndim == 0:
            return self._class(number, int(array))
        if image and array.shape == inputs.shape[1:]:
            self.masked = True
            return self._mask(number, array)
        return as_it_is(array)

    def _mask(self, number: int, stored: npt.NDArray[Any]) -> npt.NDArray[Any]:
        numbers = self._numbers
        if numbers is None:  # nothing says how many classes there are: none is wrong
            return stored if stored.dtype == np.uint8 else stored.astype(np.int16)
        if self.targets is None:
            numbers.require_usable()
        found = numbers.of(stored)
        if found.min() < 0:
            name, unit = f"of item {number}", "pixels" if stored.ndim == 2 else "voxels"
            raise self._wrong(*numbers.mistake(name, stored, unit))
        return found.astype(numbers.dtype)

    def _class(self, number: int, label: int) -> npt.NDArray[np.int64]:
        classes = None if self._numbers is None else self._numbers.classes
        if classes is not None and not 0 <= label < classes:
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
            wrong = f"no array ({error_text(error)})"
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
        return (len(self.items), *self.items.kinds[self.part].shape)

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


def is_image(spec: ArraySpec) -> bool:
    """Whether this is an image [c, h, w], or a volume [c, d, h, w]."""
    dtypes = spec.dtype is not None and (spec.dtype == np.uint8 or spec.dtype.kind == "f")
    return len(spec.shape) in (3, 4) and dtypes


def as_it_is(array: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """`array` in a dtype that networks take: bytes and bools, float32, or int64."""
    if array.dtype.kind == "f":
        return array.astype(np.float32, copy=False)
    kept = array.dtype in (np.uint8, np.bool_)
    return array if kept else array.astype(np.int64, copy=False)


def is_value(item: object) -> bool:
    """Whether `item` is an array, a tensor or a PIL image."""
    return hasattr(item, "__array_interface__") or hasattr(item, "__array__")


def is_several(value: object) -> bool:
    """Whether a tuple with this in it is several values, and not the numbers of one array."""
    if isinstance(value, Mapping):
        return True
    if isinstance(value, tuple | list):
        return any(map(is_several, value))
    return is_value(value) and getattr(value, "ndim", 2) > 0  # PIL images have no ndim


def skeleton(tree: Tree) -> Tree:
    """A tree without its leaves, to compare keys and numbers of values."""
    return each(lambda leaf: None, tree)


def parts_of(tree: Tree) -> str:
    """The keys of a dict, the number of values of a tuple, or what one value is."""
    if isinstance(tree, dict):
        return f"a dict of {', '.join(tree)}"
    if isinstance(tree, tuple):
        return f"a tuple of {len(tree)}"
    return str(tree) if isinstance(tree, ArraySpec) else "one value"


def described(value: Any) -> str:
    """The type of `value`, with its length if it is a sequence."""
    of = f" of {len(value)}" if isinstance(value, tuple | list) else ""
    return f"a {type(value).__name__}{of}"


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
    return DataError(field, target, f"{what} raised {error_text(error)}; {where}; {do}")
