"""The dataset of a comparison: what the caller gave, as it is. Imports no torch."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
from PIL import Image

from ninefold.api.capsule import load
from ninefold.api.collated import CollatedItems, CollatedRows, Collating, default_collate
from ninefold.dataset import Examples, Split
from ninefold.dataset.items import Items, generators, raised, seed_by
from ninefold.dataset.layout import as_it_is
from ninefold.dataset.mapped import Mapped
from ninefold.errors import ConfigError, DataError
from ninefold.tree import Tree, leaves

if TYPE_CHECKING:  # they import torch, which the checks before the start do not need
    from ninefold.dataset.item_loader import ItemReader
    from ninefold.engine.batches import Preparation

UNKNOWN = 2**22  # values of an example that are taken to be in it, see `engine.batches`


class Pair:
    """Inputs and targets as two arrays of as many examples: batches are slices of them."""

    def __init__(self, inputs: Any, targets: Any) -> None:
        self.inputs, self.targets = as_it_is(np.asarray(inputs)), as_it_is(np.asarray(targets))

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
    """

    OF_MAPPINGS: ClassVar[str] = (
        "pass overrides=['dataset.keys=[INPUT,TARGET]'], or forward=function(model, batch), which "
        "gets them whole and returns the loss"
    )
    AS_RETURNED: ClassVar[bool] = True

    file: str
    sha256: str
    whole: bool = False

    def load(self, split: Split) -> Examples:
        data, limit = self._data(split), self.limit_of(split)
        if isinstance(data, Collating):
            none = np.empty((len(data), 0), np.float32)
            rows, reader = CollatedRows(self._collated(split)), self._reader(split)
            return Examples(rows, none, reader=reader).first(limit)
        if self.whole or not isinstance(data, Pair):
            return super().load(split)
        return Examples(data.inputs, data.targets).first(limit)

    def prepare(self) -> None:
        """As Mapped does; of a split with a collate_fn, collate two items instead."""
        collating = [split for split in self.splits if isinstance(self._data(split), Collating)]
        if not collating:
            return super().prepare()
        if self.cache is not None:
            raise ConfigError(
                "dataset.cache",
                self.cache,
                "a collate_fn returns no arrays to keep",
                "a dataset without one has some",
                "leave it out, or keep items in the dataset",
            )
        for split in self.splits:
            if split not in collating:
                self._items(split).require_usable()
                continue
            two = CollatedRows(self._collated(split)).read(np.arange(2) % len(self._data(split)))
            if not self.whole:
                two.pair(f"dataset.{split}")
        return None

    def start_workers(self, count: int, splits: Sequence[Split], patience: float) -> None:
        if not isinstance(self._data("train"), Pair):
            super().start_workers(count, splits, patience)

    def item_shape(self) -> Tree:
        """As the first training item has it."""
        if isinstance(self._data("train"), Collating):
            return [UNKNOWN]  # so that evaluations have the batches of training
        items = self._items("train")
        if any(isinstance(leaf, Image.Image) for leaf in leaves(items.returned_input())):
            raise DataError(
                "dataset",
                self._node("train")["_target_"],
                "item 0 is a PIL image",
                "tensors, arrays and numbers are taken, as DataLoader takes them",
                "convert it in the dataset (torchvision.transforms.PILToTensor)",
            )
        return items.layout.shape

    def count_classes(self) -> None:
        """None, as nothing needs their number: the caller's model has its outputs already."""

    def sources(self, split: Split) -> Sequence[str]:
        return [self.file]

    def preparation(self, **options: Any) -> Preparation:
        from ninefold.api.parts import AsItIs  # it imports torch

        layout = options.pop("memory_format")
        for key, value in options.items():
            if value:
                raise ConfigError(
                    f"dataset.{key}",
                    value,
                    "what a dataset object returns is not changed",
                    "only a dataset of ninefold's own is",
                    "do it in the dataset",
                )
        return AsItIs(layout, self.whole)

    def _items(self, split: Split, whole: bool = False) -> Items:
        return super()._items(split, self.whole)

    def _node(self, split: Split) -> dict[str, Any]:
        """What errors call the data by: its class, in place of one that a configuration names."""
        built = self._built.get(split)
        built = built.data if isinstance(built, Collating) else built
        return {"_target_": "arrays" if isinstance(built, Pair) else type(built).__name__}

    def _collated(self, split: Split) -> CollatedItems:
        data = self._data(split)
        return CollatedItems(data, f"dataset.{split}", self._node(split)["_target_"])

    def _to_read(self, split: Split) -> ItemReader:
        collating = isinstance(self._data(split), Collating)
        return self._collated(split) if collating else self._items(split)

    def _data(self, split: Split) -> Any:
        """The caller's data of a split, read from the file of objects once."""
        if split not in self._built:
            given = load(self.file, self.sha256, "dataset")
            data = given["train" if given["test"] is None else split]
            inner = data.data if isinstance(data, Collating) else data
            if not hasattr(type(inner), "__getitem__"):
                inner = self._made(inner, f"dataset.{split}")
                data = Collating(inner, data.collate) if isinstance(data, Collating) else inner
            if self.whole and not isinstance(data, Pair | Collating) and has_text(data):
                data = Collating(data, default_collate)
            self._built[split] = data
        return self._built[split]

    def _made(self, make: Any, field: str) -> Any:
        """What a function that makes a dataset returns."""
        name = getattr(make, "__name__", type(make).__name__)
        try:
            data = make()
        except Exception as error:
            raise raised(field, name, "the function", error) from error
        if not (hasattr(type(data), "__len__") and hasattr(type(data), "__getitem__")):
            raise DataError(
                field,
                name,
                f"it returns a {type(data).__name__}",
                "an object with __len__ and __getitem__ is needed",
                "give items by number",
            )
        return data


def has_text(data: Any) -> bool:
    """Whether item 0 has a string in it, which no array holds. False if it cannot be read."""
    try:
        with generators(0, 0):
            seed_by((0, 0))
            return any(isinstance(leaf, str | bytes) for leaf in leaves(data[0]))
    except Exception:  # what reads the items next tells why
        return False
