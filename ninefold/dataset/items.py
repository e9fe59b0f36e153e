"""Items of a map-style dataset of the user, collated a batch at a time, with draws of their own in
each epoch.

torch's default_collate makes the batches, or the collate_fn of a DataLoader. The random generators
of the process are seeded for each item. So one thread of a process reads.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from numbers import Number
from typing import TYPE_CHECKING, Any

import numpy as np
from PIL import Image

from ninefold.dataset.arrays import LazyArray, Rows
from ninefold.dataset.collated import Collated
from ninefold.dataset.images import spread
from ninefold.dataset.masks import LOOKED_AT, ClassNumbers
from ninefold.errors import (
    ConfigError,
    DataError,
    Failure,
    by_signal,
    error_text,
    memory_failure,
    users_frame,
)
from ninefold.numbers import counted
from ninefold.progress import bar
from ninefold.tree import Tree, each, leaves, named
from ninefold.types import Key

if TYPE_CHECKING:  # the checks before the start import it when they collate
    from torch import Tensor

TO_TENSOR = (
    "add the transform v2.Compose([v2.ToImage(), v2.ToDtype(torch.float32, scale=True)]) of "
    "torchvision.transforms"
)
# What to do with a part of an item that makes no tensor, by its type.
ADVICE: dict[Any, str] = {
    Image.Image: f"{TO_TENSOR}, or of a mask return torch.from_numpy(numpy.array(mask))",
    list: "return torch.tensor(numbers), of Hugging Face's datasets by with_format('torch')",
    str: "turn text into numbers, as dataset.map(tokenizer) does, or pass ninefold.compare a "
    "forward=, which gets it",
    object: "leave it out, or give ninefold.compare forward= and a DataLoader whose collate_fn "
    "makes batches of it, as that of its library",
}
OF_MAPPINGS = (
    "set dataset.keys=[INPUT,TARGET], [[INPUT,INPUT],TARGET] for several inputs, or [INPUT] for an "
    "input alone, by names or by places from 0"
)


@dataclass(frozen=True)
class Items:
    """The items of a dataset with __len__ and __getitem__, as batches of inputs and targets.

    field, name: the key and the class, for errors.
    keys: see Mapped. of_mappings: what to do where items are no pairs and there are none, for an
        error.
    collate: the collate_fn of a DataLoader, which gets the items as they are; None: default_collate
        gets pairs. What that returns becomes float32, int64, or stays bytes and bools.
    whole: a batch is the one argument of the network, without targets.
    numbers: of the classes, and of void in masks, which are checked; None: they are not.
    """

    data: Any
    field: str
    name: str
    keys: Sequence[Key | Sequence[Key]] | None = None
    of_mappings: str = OF_MAPPINGS
    collate: Callable[[list[Any]], Any] | None = None
    whole: bool = False
    numbers: ClassNumbers | None = None

    def __len__(self) -> int:
        try:
            count = len(self.data)
        except Exception as error:
            raise raised(self.field, self.name, "its length", error) from error
        if not 0 < count < 2**32:  # the numbers of items seed generators as 32 bits
            wrong = f"it has {count or 'no'} items"
            raise self.wrong(wrong, f"1 to {2**32} can be shuffled", "see its arguments")
        return count

    @cached_property
    def first(self) -> tuple[Tree, Tree]:
        """Item 0 as a batch. Raises DataError for what makes no tensor."""
        _ = len(self)  # raises before an item is read
        if self.collate is None:
            _ = self._parts
        return self.batch(np.zeros(1, np.int64))

    @property
    def float64(self) -> bool:
        """Whether an item has such numbers, which become float32."""
        return self.collate is None and any(
            str(getattr(part, "dtype", "")).endswith("float64") for part in self._parts
        )

    @property
    def masked(self) -> bool:
        """Whether a target is a mask."""
        return is_mask(*self.first)

    @property
    def unlabeled(self) -> bool:
        """Whether an item is its input alone, which is then the target too."""
        target = self.first[1]
        return hasattr(target, "shape") and target.shape[1:] == (0,)

    def batch(self, rows: Rows, seed: int = 0, epoch: int = 0) -> tuple[Tree, Tree]:
        """Inputs and targets of these items; the generators are left as they were."""
        with generators(seed, epoch):
            return self.read(rows, seed, epoch)

    def read(self, rows: Rows, seed: int, epoch: int) -> tuple[Tree, Tree]:
        """Inputs and targets of these items, trees of tensors with a row for each; the generators
        are left as the last item and the collate_fn leave them.

        Items without a target have float32 [n, 0] in its place. Where a batch is whole and no such
        tree it is a Collated. Raises Failure.
        """
        import torch

        items = []
        for words, number in zip(seeds(seed, epoch, rows), rows.tolist(), strict=True):
            seed_by(words)
            items.append(self._item(number))
        try:
            value = self._collated(items[:])
        except Exception as error:
            raise self._of_collating(items, rows, error) from error
        none = torch.empty(len(items), 0)
        if self.whole:
            tensors = all(isinstance(leaf, torch.Tensor) for leaf in leaves(value))
            if self.collate is None and tensors:
                return (value,), none
            return Collated(items, self._collated, value), none
        if self.collate is not None:
            return self._pair_of(value, len(items))
        inputs, targets = (*value, none)[:2]
        if is_integers(targets) and targets.ndim == 1:  # classes
            targets = targets.long()
        if self.numbers is not None:
            self._require_classes(self.numbers, rows, inputs, targets)
        return inputs, targets

    @property
    def class_names(self) -> Sequence[str]:
        """The names of its classes, if targets are classes and `classes` says so, as torchvision's
        datasets do.
        """
        targets, found = self.first[1], getattr(self.data, "classes", None)
        named = isinstance(found, list | tuple) and all(isinstance(name, str) for name in found)
        classes = hasattr(targets, "ndim") and targets.ndim == 1 and is_integers(targets)
        return list(found or ()) if named and classes else []

    def looked_at(self) -> tuple[Tree, Tree]:
        """A batch of the first four items and of four all over the set."""
        last = len(self) - 1
        spread = np.linspace(0, last, 4).astype(np.int64)
        return self.batch(np.unique(np.append(np.arange(4).clip(max=last), spread)))

    def require_usable(self) -> None:
        """Raise DataError if one of those that are looked at is no use, or if they are masks with
        nothing to learn.
        """
        if self.collate is None:
            _ = self.first
        _, targets = self.looked_at()
        if not self.masked or self.numbers is None:
            return
        found, rows = set(targets.unique().tolist()), spread(range(len(self)), LOOKED_AT)
        # Until one shows what a few may lack, such as small objects.
        for row in bar(rows, "looking at masks", unit="mask", delay=1.0):
            if not self.numbers.nothing_to_learn(found, len(rows)):
                return
            found |= set(self.batch(np.array([row]))[1].unique().tolist())
        if wrong := self.numbers.nothing_to_learn(found, len(rows)):
            raise self.wrong(*wrong)

    def random_item(self) -> int | None:
        """The first item whose input or target differs when it is read again; None: none does.

        Of 16 items: a transform that changes half of them is missed once in 2^16. Batches that are
        no tensors are not compared.
        """
        rows = np.arange(min(16, len(self)))
        two = [leaves(self.batch(rows, 0, epoch)) for epoch in (0, 1)]
        changed = [
            row
            for one, other in zip(*two, strict=True)
            if not isinstance(one, Collated)
            for row in rows.tolist()
            if not same(one[row], other[row])
        ]
        return min(changed, default=None)

    def require_no_random_transforms(self, cache: str) -> None:
        """Raise DataError if an item differs when it is read again, which dataset.cache forbids."""
        if (number := self.random_item()) is not None:
            raise self.wrong(
                f"dataset.cache={cache}, but item {number} is another when it is read again",
                "it has random transforms, which a cache would end",
                "leave dataset.cache out, or take them out of the class",
            )

    def wrong(self, wrong: str, found: str, do: str) -> DataError:
        return DataError(self.field, self.name, wrong, found, do)

    def _item(self, number: int) -> Any:
        """What is collated of an item: input and target, or what the class returns."""
        try:
            item = self.data[number]
        except BaseException as error:
            if by_signal(error):
                raise
            raise raised(self.field, self.name, f"item {number}", error) from error
        return item if self.whole or self.collate else self._pair(number, item)

    def _pair(self, number: int, item: Any) -> tuple[Any, ...]:
        """Input and target of an item, or its input alone."""
        if self.keys is not None:
            item = self._by_keys(number, item)
        elif isinstance(item, Mapping):
            raise self.wrong(f"item {number} is a mapping", listed(item), self.of_mappings)
        if not isinstance(item, tuple | list):
            item = (item,)
        if not 0 < len(item) <= 2:
            wrong = f"item {number} has {len(item)} values"
            raise self.wrong(wrong, "(input, target) is taken", self.of_mappings)
        return tuple(dict(part) if isinstance(part, Mapping) else part for part in item)

    def _by_keys(self, number: int, item: Any) -> tuple[Any, ...]:
        """What `keys` name in a mapping, or count in a tuple: a value for each of them.

        For a list of names a dict, for a list of places a tuple.
        """
        keys, mapping = self.keys or (), isinstance(item, Mapping)
        known = item if mapping else range(len(item)) if isinstance(item, tuple | list) else ()
        for key in [key for of in keys for key in ([of] if isinstance(of, Key) else of)]:
            if key not in known:
                has = listed(item) if mapping else f"it is of type {type(item).__name__}"
                raise self.wrong(f"item {number} has no {key}", has, "correct dataset.keys")

        def part(of: Any) -> Any:
            if isinstance(of, Key):
                return item[of]
            return {key: item[key] for key in of} if mapping else tuple(item[key] for key in of)

        return tuple(map(part, keys))

    @cached_property
    def _parts(self) -> list[Any]:
        """What default_collate stacks of item 0. Raises DataError."""
        with generators(0, 0):
            seed_by((0, 0))
            return self._stacked(0, self._item(0))

    def _stacked(self, number: int, item: Any) -> list[Any]:
        """What default_collate stacks of an item. Raises DataError for what makes no tensor."""
        try:
            known = item if self.whole else dict(zip(("input", "target"), item, strict=False))
            found = [*named(known, "value", is_row)]
            for name, part in found:
                self._require_tensor(f"the {name} of item {number}", part)
        except Failure:
            raise
        except Exception as error:  # it holds itself, or does not say its shape
            raise raised(self.field, self.name, f"item {number}", error) from error
        return [part for _, part in found]

    def _require_tensor(self, name: str, part: Any) -> None:
        """Raise DataError if default_collate makes no tensor of a part of an item."""
        from torch import Tensor

        found = f"of type {type(part).__name__}"
        if isinstance(part, Number | np.ndarray | np.generic | Tensor):
            if 0 not in getattr(part, "shape", ()):
                return
            found = "empty"
        elif isinstance(part, str | bytes) and self.whole:  # a batch has a list of them
            return
        do = next(text for kind, text in ADVICE.items() if isinstance(part, kind))
        raise self.wrong(f"{name} is {found}", "tensors, arrays and numbers make a batch", do)

    def _collated(self, items: list[Any]) -> Any:
        """What the collate_fn returns of items, or without one default_collate.

        Tensors of the latter get a dtype that networks take. Text in a whole batch stays.
        """
        if self.collate is not None:
            return self.collate(items)
        from torch import Tensor
        from torch.utils.data import default_collate

        def plain(leaf: Any) -> Any:
            stays = self.whole and not isinstance(leaf, Tensor)
            return leaf if stays else in_network_dtype(leaf)

        return each(plain, default_collate(items))

    def _of_collating(self, items: list[Any], rows: Rows, error: Exception) -> Failure:
        """The failure for items that do not make a batch."""
        if self.collate is not None:
            return raised(self.field, self.name, "its collate_fn", error)
        # The first item that makes no batch, alone or with the first of all, says more than torch.
        for number, item in zip(rows.tolist(), items, strict=True):
            self._stacked(number, item)
            for batch, beside in (([item], ""), ([items[0], item], f" with item {rows[0]}")):
                try:
                    self._collated(batch)
                except Exception as apart:
                    return self.wrong(
                        f"item {number} makes no batch{beside}",
                        error_text(apart),
                        "resize, pad or convert them in the class, or give a DataLoader whose "
                        "collate_fn does it to ninefold.compare",
                    )
        return raised(self.field, self.name, "a batch of its items", error)

    def _pair_of(self, value: Any, count: int) -> tuple[Tree, Tree]:
        """What a collate_fn returns of `count` items, if it is a pair of inputs and targets."""
        from torch import Tensor

        pair = isinstance(value, tuple | list) and len(value) == 2
        rows = [isinstance(leaf, Tensor | Collated) and leaf.shape[:1] for leaf in leaves(value)]
        if pair and all(of == (count,) for of in rows):
            return value[0], value[1]
        found = each(
            lambda leaf: list(leaf.shape) if isinstance(leaf, Tensor) else type(leaf).__name__,
            value,
        )
        wrong = f"of {counted(count, 'item')} its collate_fn returns {found}"
        allowed = "with loss(output, target) inputs and targets with a row for each item are taken"
        do = "pass forward=function(model, batch), which gets what it returns, and gives the loss"
        raise ConfigError(self.field, "DataLoader", wrong, allowed, do)

    def _require_classes(
        self, numbers: ClassNumbers, rows: Rows, inputs: Tree, targets: Tree
    ) -> None:
        """Raise DataError for classes, and for masks of classes, that are not allowed."""
        if is_mask(inputs, targets):
            numbers.require_usable()
            found = numbers.of(targets.numpy())
            bad = np.flatnonzero((found < 0).reshape(len(rows), -1).any(axis=1))
            if len(bad):
                name, unit = f"of item {rows[bad[0]]}", "pixel" if found.ndim == 3 else "voxel"
                raise self.wrong(*numbers.mistake(name, targets.numpy()[bad[0]], unit))
        elif is_integers(targets) and targets.ndim == 1:
            bad = np.flatnonzero((targets < 0) | (targets >= numbers.classes))
            if len(bad):
                label = int(targets[bad[0]])
                wrong = f"item {rows[bad[0]]} of {self.field} has the class {label}"
                allowed = f"0 to {numbers.classes - 1} are allowed"
                do = f"set dataset.classes={label + 1} or more" if label >= 0 else "count from 0"
                raise DataError("dataset.classes", numbers.classes, wrong, allowed, do)


@dataclass(frozen=True)
class Column(LazyArray):
    """Number `part` of the tensors in a batch of items as an array, without an epoch's draws."""

    items: Items
    part: int

    @property
    def shape(self) -> tuple[int, ...]:
        return (len(self.items), *leaves(self.items.first)[self.part].shape[1:])

    def read(self, rows: Rows) -> Any:
        found = leaves(self.items.batch(rows))[self.part]
        return found if isinstance(found, Collated) else found.numpy()


def is_row(value: Any) -> bool:
    """Whether it is a list of numbers alone, or of such lists: default_collate transposes it."""
    return isinstance(value, list) and all(isinstance(v, Number) or is_row(v) for v in value)


def in_network_dtype(tensor: Tensor) -> Tensor:
    """A tensor in a dtype that networks take: bytes and bools, float32, or int64; on the CPU."""
    import torch

    tensor = tensor.detach().cpu()
    if tensor.is_floating_point():
        return tensor.float()
    kept = tensor.dtype in (torch.uint8, torch.bool) or tensor.is_complex()
    return tensor if kept else tensor.long()


def is_by_number(data: Any) -> bool:
    """Whether a dataset gives items by number: torch's iterable ones inherit a __getitem__ that
    raises.
    """
    from torch.utils.data import IterableDataset

    kind = type(data)
    has_both = hasattr(kind, "__len__") and hasattr(kind, "__getitem__")
    return has_both and not isinstance(data, IterableDataset)


def is_integers(values: Tree) -> bool:
    """Whether these are a tensor of class numbers, and no floats."""
    return hasattr(values, "is_floating_point") and not values.is_floating_point()


def is_mask(inputs: Tree, targets: Tree) -> bool:
    """Whether targets have a number for each pixel or voxel of images."""
    from ninefold.dataset.preparation import is_image  # it imports torch

    image = hasattr(inputs, "is_floating_point") and is_image(inputs)
    return image and is_integers(targets) and targets.shape[1:] == inputs.shape[2:]


def same(one: Tensor, other: Tensor) -> bool:
    """Whether shapes and all numbers are the same; NaN is NaN here."""
    if one.shape != other.shape:
        return False
    return bool(((one == other) | (one != one) & (other != other)).all())


def listed(mapping: Mapping[Any, Any]) -> str:
    keys = (f"{key}{' (text)' * isinstance(value, str)}" for key, value in mapping.items())
    return f"it has {', '.join(keys)}"


@contextmanager
def generators(*key: int) -> Iterator[None]:
    """Seed random, NumPy's and torch's CPU generators by `key`; restore them after the block.

    Dropout draws from torch's generator too: it goes on as if nothing had been read.
    """
    import torch

    before = torch.default_generator.get_state()
    pythons, numpys = random.getstate(), np.random.get_state(legacy=False)
    assert isinstance(numpys, dict)
    numpys["state"]["key"] = numpys["state"]["key"].tolist()  # set 30 times as fast as an array
    seed_by(np.random.SeedSequence(key).generate_state(2))
    try:
        yield
    finally:
        random.setstate(pythons)
        np.random.set_state(numpys)
        torch.default_generator.set_state(before)


def seed_by(words: Iterable[int]) -> None:
    """Seed these generators by two numbers of 32 bits."""
    import torch

    first, second = words
    random.seed(int(first) << 32 | int(second))
    np.random.seed(first)
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
