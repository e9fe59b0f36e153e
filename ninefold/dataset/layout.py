"""What the items of a user's dataset are, and how each is taken apart into arrays."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt
from PIL import Image

from ninefold.dataset.arrays import ArraySpec
from ninefold.dataset.masks import MAX_CLASSES, ClassNumbers
from ninefold.errors import DataError, error_text
from ninefold.tree import Tree, each, filled, is_deeper, leaves, named
from ninefold.types import Key

CHANNELS = (1, 3, 4)  # that an image may have, where nothing says its shape
NOTHING = np.empty(0, np.float32)  # the target of an item that has none
OF_MAPPINGS = (
    "set dataset.keys=[INPUT,TARGET], [[INPUT,INPUT],TARGET] for several inputs, or [INPUT] for an "
    "input alone"
)
MAX_DEPTH = 32  # of sequences and mappings in an item, one in the other


@dataclass(frozen=True)
class Layout:
    """What an item has: its input and its target, as the configuration and then item 0 say.

    field, data: the key and the class, for errors.
    numbers: of the classes, and of void in masks; None: there are none, or not known yet.
    keys: see Mapped.
    whole: an item of any kind is the one argument of the network, without a target. A tuple of
        one value or of numbers stays a tuple, as torch's default_collate has it.
    as_returned: whether no axis of an input is moved or added.
    of_mappings: what to do where items are mappings and no keys are given, for an error.
    inputs, targets: an ArraySpec, or a tree of them (a tuple or a dict); None: not known yet.
    unlabeled: whether an item is its input alone, which is then the target too.
    masked: whether the target is a mask of class numbers.
    plain: type, shape and dtype of an input beside a class that is taken as it is.
    float64: whether it has such numbers, which become float32.
    """

    field: str
    data: str
    numbers: ClassNumbers | None = None
    keys: Sequence[Key | Sequence[Key]] | None = None
    whole: bool = False
    as_returned: bool = False
    of_mappings: str = OF_MAPPINGS
    inputs: Tree = None
    targets: Tree = None
    unlabeled: bool = False
    masked: bool = False
    plain: tuple[Any, ...] | None = None
    float64: bool = False

    def of_first(self, item: Any) -> Layout:
        """Return the layout that item 0 has. Raises DataError, and ConfigError for masks that have
        no such numbers."""
        inputs, target = both = self._checked(0, item)
        specs = each(ArraySpec.of, both)
        value: Any = item[0] if isinstance(item, tuple) and type(item[-1]) is int else None
        plain = hasattr(value, "shape") and [ArraySpec.of(np.asarray(value))] == leaves(specs)[:-1]
        return replace(
            self,
            inputs=specs[0],
            targets=specs[1],
            unlabeled=target is NOTHING,
            masked=isinstance(target, np.ndarray) and is_mask(inputs, target),
            plain=(type(value), value.shape, value.dtype) if plain else None,
            float64=any(
                str(getattr(leaf, "dtype", "")).endswith(("float64", "f8"))
                for leaf in leaves(self.pair(0, item))
            ),
        )

    def arrays(self, number: int, item: Any) -> Sequence[Any]:
        """Return the values of an item, in the order of `kinds`. Raises DataError."""
        return self._as_the_first(item) or leaves(self._checked(number, item))

    @cached_property
    def kinds(self) -> list[ArraySpec]:
        """What each array of an item is, those of the input first."""
        return [] if self.targets is None else leaves((self.inputs, self.targets))

    @property
    def shape(self) -> Tree:
        """The shape of an item's input, a list of numbers, or a tree of such."""
        return each(lambda kind: list(kind.shape), self.inputs)

    @property
    def image(self) -> bool:
        """Return whether the input is one image or volume: bytes or floats with channels first."""
        kind = self.inputs
        return isinstance(kind, ArraySpec) and is_image(kind)

    def _as_the_first(self, item: Any) -> tuple[npt.NDArray[Any], int] | None:
        """A tensor or array and a class that are like those of item 0, which were taken as they
        were; None: look closer. It takes a quarter of the time.
        """
        if self.plain is None or type(item) is not tuple or len(item) != 2:
            return None
        value, label = item
        if type(value) is not self.plain[0] or type(label) is not int:
            return None
        if (value.shape, value.dtype) != self.plain[1:]:
            return None
        if self.numbers is not None and not 0 <= label < self.numbers.classes:
            return None
        try:
            return np.asarray(value), label
        except Exception:  # it requires a gradient
            return None

    def _checked(self, number: int, item: Any) -> tuple[Tree, Tree]:
        """The input and the target of an item as arrays. Raises DataError."""
        if is_deeper(item, MAX_DEPTH):
            wrong = f"item {number} is nested more than {MAX_DEPTH} deep, or contains itself"
            raise self.wrong(wrong, f"it is {described(item)}", "return a flatter one")
        value, target = self.pair(number, item)
        # Where one array is expected, a list of lists is one too.
        if not isinstance(self.inputs, ArraySpec) or isinstance(value, Mapping):
            value = self._in_order(number, "input", value, self.inputs)
        one = isinstance(self.inputs, ArraySpec)
        values = [("input", value)] if one else list(named(value, "input"))
        wanted = leaves(self.inputs) if self.inputs else [None] * len(values)
        arrays = [self._input(number, *v, kind) for v, kind in zip(values, wanted, strict=True)]
        inputs = filled(self.inputs or value, arrays)
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
            raise self.wrong(
                f"an input or a target of item {number} has no values",
                f"it is {described(item)}",
                "leave it out in the class; an input alone is its own target",
            )
        return inputs, target

    @cached_property
    def _flat_keys(self) -> list[Key]:
        parts = self.keys or ()
        return [key for part in parts for key in ([part] if isinstance(part, Key) else part)]

    def pair(self, number: int, item: Any) -> tuple[Any, Any]:
        """Input and target of an item; of an unlabeled one NOTHING in place of a target."""
        if self.whole:
            return (item,), NOTHING
        if isinstance(item, Mapping) or (
            isinstance(item, tuple | list) and any(isinstance(key, int) for key in self._flat_keys)
        ):
            item = self._by_keys(number, item)
        elif self.keys is not None:
            raise self.wrong(
                f"item {number} has no keys",
                f"it is {described(item)}",
                "leave dataset.keys out, or give places in a tuple, as [0,1] or [[0,1],2]",
            )
        elif is_value(item):
            item = (item,)
        if not isinstance(item, tuple | list) or not item or (len(item) > 1 and item[1] is None):
            raise self.wrong(
                f"item {number} has no target",
                f"it is {described(item)}",
                "return (input, target), an input alone, or a mapping with dataset.keys; objects "
                "such as graphs need a DataLoader whose collate_fn makes batches, and "
                "ninefold.compare(forward=)",
            )
        if len(item) > 2:
            raise self.wrong(
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
        keys, mapping = self.keys, isinstance(item, Mapping)
        has = f"it has {', '.join(map(str, item)) if mapping else f'{len(item)} values'}"
        if keys is None or len(keys) > 2:
            raise self.wrong(f"item {number} is a mapping", has, self.of_mappings)
        known = item if mapping else range(len(item))
        for key in self._flat_keys:
            if key not in known:
                raise self.wrong(f"item {number} has no {key}", has, "correct dataset.keys")

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
        several = isinstance(value, tuple) and self.whole and len(value) > 0
        if several or (isinstance(value, tuple | list) and any(map(is_several, value))):
            parts = enumerate(value)
            return tuple(self._structure(number, inner, f"{name}[{n}]") for n, inner in parts)
        return value if isinstance(value, Image.Image) else self._array(number, value, name)

    def _unlike(self, number: int, name: str, found: object, like: object) -> DataError:
        """The failure for an input or a target that differs from what the others have."""
        return self.wrong(
            f"the {name} of item {number} is {found}",
            f"{'item 0' if self.kinds else 'dataset.shape'} has {like}",
            "resize, pad or convert it in the class: all items have the keys, shapes and dtypes of "
            f"the first{'' if self.as_returned else ', images with channels first or last'}",
        )

    def _input(
        self, number: int, name: str, value: Any, wanted: ArraySpec | None
    ) -> npt.NDArray[Any]:
        """One input as an array, with channels first; None: nothing says its shape."""
        array = self._array(number, value, name)
        if self.as_returned:
            return as_it_is(array)
        if isinstance(value, Image.Image):
            if value.mode not in ("L", "RGB"):
                raise self.wrong(
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
        if array.dtype.kind in "iub" and array.ndim == 0:
            return self._class(number, int(array))
        return self._mask(number, array) if is_mask(inputs, array) else as_it_is(array)

    def _mask(self, number: int, stored: npt.NDArray[Any]) -> npt.NDArray[Any]:
        numbers = self.numbers
        if numbers is None:  # nothing says how many classes there are: none is wrong
            if stored.dtype == np.uint8:
                return stored
            if stored.size and not -MAX_CLASSES <= stored.min() <= stored.max() <= MAX_CLASSES:
                raise self.wrong(
                    f"the target of item {number} has numbers up to {stored.max()} in its pixels",
                    f"classes of pixels up to {MAX_CLASSES} are allowed, and floats of any size",
                    "return what is measured, and no class, as floats",
                )
            return stored.astype(np.int16)
        if self.targets is None:
            numbers.require_usable()
        found = numbers.of(stored)
        if found.min() < 0:
            name, unit = f"of item {number}", "pixels" if stored.ndim == 2 else "voxels"
            raise self.wrong(*numbers.mistake(name, stored, unit))
        return found.astype(numbers.dtype)

    def _class(self, number: int, label: int) -> npt.NDArray[np.int64]:
        classes = None if self.numbers is None else self.numbers.classes
        if classes is not None and not 0 <= label < classes:
            raise DataError(
                "dataset.classes",
                classes,
                f"item {number} of {self.field} has the class {label}",
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
            do = "convert it in the class"
            if isinstance(value, str):
                do = "turn text into numbers first, as dataset.map(tokenizer) does"
            raise self.wrong(
                f"the {what} of item {number} is {wrong}",
                "a PIL image, an array of numbers or a tensor on the CPU is allowed",
                do,
            )
        return array

    def wrong(self, wrong: str, found: str, do: str) -> DataError:
        return DataError(self.field, self.data, wrong, found, do)


def is_mask(inputs: Tree, target: npt.NDArray[Any]) -> bool:
    """Return whether `target` has a number for each pixel or voxel of an image."""
    image = isinstance(inputs, np.ndarray) and is_image(ArraySpec.of(inputs))
    return image and target.dtype.kind in "iub" and target.shape == inputs.shape[1:]


def is_image(spec: ArraySpec) -> bool:
    """Return whether this is an image [c, h, w], or a volume [c, d, h, w]."""
    dtypes = spec.dtype is not None and (spec.dtype == np.uint8 or spec.dtype.kind == "f")
    return len(spec.shape) in (3, 4) and dtypes


def as_it_is(array: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """`array` in a dtype that networks take: bytes and bools, float32, or int64."""
    if array.dtype.kind == "f":
        return array.astype(np.float32, copy=False)
    kept = array.dtype in (np.uint8, np.bool_)
    return array if kept else array.astype(np.int64, copy=False)


def is_value(item: object) -> bool:
    """Return whether `item` is an array, a tensor or a PIL image."""
    return hasattr(item, "__array_interface__") or hasattr(item, "__array__")


def is_several(value: object) -> bool:
    """Return whether a tuple with this in it is several values, not the numbers of one array."""
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
