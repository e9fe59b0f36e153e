"""The dataset of a comparison: what the caller gave, as it is. Imports no torch."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy.typing as npt

from ninefold.api.capsule import load
from ninefold.dataset import Examples, Split
from ninefold.dataset.collated import Collate, Collated
from ninefold.dataset.items import Items, generators, is_by_number, raised
from ninefold.dataset.mapped import Mapped
from ninefold.errors import ConfigError, DataError
from ninefold.tree import Tree, leaves

if TYPE_CHECKING:  # it imports torch
    from ninefold.engine.batches import Preparation

UNKNOWN = 2**22  # values of an example that are taken to be in it, see `engine.batches`
OF_MAPPINGS = (
    "pass overrides=['dataset.keys=[INPUT,TARGET]'] (names, or places from 0), or "
    "forward=function(model, batch), which gets them whole and returns the loss"
)


@dataclass(frozen=True)
class Collating:
    """A map-style dataset, and the `collate_fn` of the DataLoader that it was given in."""

    data: Any
    collate: Collate


@dataclass(frozen=True)
class Pair:
    """Inputs and targets as two arrays of as many examples: batches are slices of them."""

    inputs: npt.NDArray[Any]
    targets: npt.NDArray[Any]

    def __len__(self) -> int:
        return len(self.inputs)

    def __getitem__(self, number: int) -> tuple[Any, Any]:
        return self.inputs[number], self.targets[number]


@dataclass(frozen=True, kw_only=True)
class CallersDataset(Mapped):
    """Items of the caller's own datasets, which the network gets as they are.

    Without a test set the training examples stand for it: a study of times evaluates nothing.

    file, sha256: the objects, see `ninefold.api.capsule`.
    whole: whether an item is the one argument of the network, and has no target.
    tested: whether there is a test set.
    """

    file: str
    sha256: str
    whole: bool = False
    tested: bool = True

    def load(self, split: Split) -> Examples:
        if (pair := self._sliced(split)) is None:
            return super().load(split)
        return Examples(pair.inputs, pair.targets).first(self.limit_of(split))

    def start_workers(self, count: int, splits: Sequence[Split], patience: float) -> None:
        if any(self._sliced(split) is None for split in splits):
            super().start_workers(count, splits, patience)

    def _sliced(self, split: Split) -> Pair | None:
        """The arrays of a split whose batches are slices; None: they are made of items."""
        data = self._items(split).data
        return data if isinstance(data, Pair) and not self.whole else None

    def item_shape(self) -> Tree:
        """As the first training item has it."""
        if self._items("train").collate is not None:
            return [UNKNOWN]  # so that evaluations have the batches of training
        return super().item_shape()

    def count_classes(self) -> None:
        """None, as nothing needs their number: the caller's model has its outputs already."""

    def sources(self, split: Split) -> Sequence[str]:
        return [self.file]

    def preparation(self, **options: Any) -> Preparation:
        from ninefold.api.parts import AsItIs  # it imports torch

        layout = options.pop("memory_format")
        for key, value in options.items():
            if value:
                wrong = "what a dataset object returns is not changed"
                allowed = "only a dataset of ninefold's own is"
                field = f"model.input_{key}" if key in ("channels", "size") else f"dataset.{key}"
                raise ConfigError(field, value, wrong, allowed, "do it in the dataset")
        return AsItIs(layout)

    def _items(self, split: Split) -> Items:
        return super()._items(split if self.tested else "train")

    def _made(self, split: Split) -> Items:
        """The caller's items of a split, read from the file of objects."""
        data, collate = load(self.file, self.sha256, "dataset")[split], None
        if isinstance(data, Collating):
            data, collate = data.data, data.collate
        field = f"dataset.{split}"
        if not hasattr(type(data), "__getitem__"):
            data = self._returned(data, field)
        name = "arrays" if isinstance(data, Pair) else type(data).__name__
        return Items(data, field, name, self.keys, OF_MAPPINGS, collate, self.whole)

    def _require_shape(self, items: Items) -> None:
        """Raise ConfigError if what is no arrays is to be cached; any shape is taken."""
        inputs = leaves(items.first[0])
        if self.cache is not None and (items.collate or isinstance(inputs[0], Collated)):
            wrong = "a batch with text, or of a collate_fn, has no arrays to keep"
            allowed = "a dataset without them has some"
            do = "leave it out, or keep items in the dataset"
            raise ConfigError("dataset.cache", self.cache, wrong, allowed, do)

    def _returned(self, make: Any, field: str) -> Any:
        """What a function that makes a dataset returns."""
        name = getattr(make, "__name__", type(make).__name__)
        try:
            with generators(0, 0):
                data = make()
        except Exception as error:
            raise raised(field, name, "the function", error) from error
        if not is_by_number(data) or isinstance(data, tuple):
            wrong = f"it returns a {type(data).__name__}"
            allowed = "a dataset with __len__ and __getitem__ is needed"
            raise DataError(field, name, wrong, allowed, "give items by number")
        return data
