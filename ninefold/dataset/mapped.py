"""Any map-style Dataset class of the user: __len__ and __getitem__, built from its _target_."""

from __future__ import annotations

import inspect
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from importlib import import_module
from typing import TYPE_CHECKING, Any

import numpy as np
from hydra.errors import InstantiationException
from hydra.utils import instantiate

from ninefold.dataset import Dataset, Examples, Split
from ninefold.dataset.class_numbers import ClassNumbers
from ninefold.dataset.items import Column, Items, first_cause, generators, raised
from ninefold.errors import ConfigError, DataError, users_frame
from ninefold.ranks import found
from ninefold.types import Names

if TYPE_CHECKING:  # it imports torch, which the checks before the start do not need
    from ninefold.dataset.preparation import Preparation


@dataclass(frozen=True, kw_only=True)
class Mapped(Dataset):
    """Items of the classes that `train` and `test` describe: (input, target), or mappings.

    An input is a PIL image, an array or a tensor of `shape`, channels first or last: uint8, or
    floats, which become float32. A target is a class, a mask of class numbers or points. torch,
    numpy and random are seeded for each item by (seed, epoch, index), in evaluations by
    (0, 0, index).
    """

    train: Mapping[str, Any] | None = None
    test: Mapping[str, Any] | None = None
    keys: Names = None
    """Keys of the input and the target, in items that are mappings."""
    classes: int = 10
    shape: Sequence[int] = (3, 64, 64)
    ignore: int | None = 255  # the number of a mask's pixels that do not count; None: all count
    class_names: Sequence[str] | None = None
    # What was built for each split: a class may read all of its files when it is built.
    _built: dict[str, Any] = field(default_factory=dict, init=False, repr=False, compare=False)

    def prepare(self) -> None:
        """Build both classes and read their first items, in the launcher: what they download is
        there before several processes build them. Raises DataError, ConfigError.
        """
        for split in ("train", "test"):
            items = self._items(split, "HYDRA_FULL_ERROR=1 shows the traceback")
            items.require_several_classes()
            if self.cache is not None:
                items.require_no_random_transforms(self.cache)
            moved = "flip" if self.flip else f"crop={self.crop}" if self.crop else None
            points = items.target_dtype == np.float32 and len(items.target_shape) > 0
            if moved and (points or len(self.shape) == 4):
                raise ConfigError(
                    f"dataset.{moved.partition('=')[0]}",
                    "true" if self.flip else self.crop,
                    f"{'points' if points else 'volumes'} are not moved; images with classes or "
                    "masks can be; leave it out and do it in the class",
                )

    def load(self, split: Split) -> Examples:
        rank = found(os.environ).rank
        items = self._items(split, f"traceback in run{f'.rank{rank}' if rank else ''}.log")
        examples = Examples(Column(items, 0), Column(items, 1), tuple(self.class_names or ()))
        return examples.first(self.limit_of(split))

    def sources(self, split: Split) -> Sequence[str]:
        """The source file of the class."""
        module, _, name = self._node(split)["_target_"].rpartition(".")
        try:
            return [str(inspect.getsourcefile(getattr(import_module(module), name)))]
        except (ImportError, AttributeError, TypeError):  # built in, or written in C
            return []

    def preparation(self, **options: Any) -> Preparation:
        from ninefold.dataset.preparation import TypedPreparation  # it imports torch

        return TypedPreparation(**options)

    def require_loader(self, workers: int | str) -> None:
        """Raise ConfigError for loader threads.

        Random generators belong to the whole process. A thread that seeds them for its item would
        change what other threads draw for theirs, and what dropout draws in the training thread.
        """
        if workers not in (0, "auto"):
            raise ConfigError(
                "loader.workers",
                workers,
                "dataset=mapped seeds the random generators of its process for each item; other "
                "threads would draw from them too: 0 is allowed; set loader.workers=0, or cache "
                "the items with dataset.cache",
            )

    def _node(self, split: Split) -> dict[str, Any]:
        node = {"train": self.train, "test": self.test}.get(split)
        if not isinstance(node, Mapping) or "_target_" not in node:
            raise ConfigError(
                f"dataset.{split}",
                "null" if node is None else node,
                "no class is named; a section with a _target_ and its arguments is allowed; set "
                f"dataset.{split}={{_target_: module.Class, argument: value}} in quotes",
            )
        return dict(node)

    def _items(self, split: Split, log: str) -> Items:
        """The items of a split. log: where the traceback of an error in the class can be read."""
        node = self._node(split)
        field, target = f"dataset.{split}", node["_target_"]
        if split not in self._built:
            self._built[split] = self._build(field, node, log)
        numbers = ClassNumbers(self.classes, self.ignore)
        return Items(self._built[split], tuple(self.shape), numbers, self.keys, field, target, log)

    def _build(self, field: str, node: Mapping[str, Any], log: str) -> Any:
        """The object of the user's class that `node`, the value of `field`, describes."""
        target = node["_target_"]
        try:
            with generators(0, 0):
                data = instantiate(node, _convert_="all")
        except InstantiationException as error:
            located = "Error locating target" not in str(error)
            cause = (error.__cause__ or error) if located else first_cause(error)
            if not located and users_frame(cause) is None:
                raise ConfigError(
                    f"{field}._target_",
                    target,
                    f"it cannot be imported ({cause}); the dotted name of a class in a module on "
                    "PYTHONPATH is allowed; correct it, or PYTHONPATH=FOLDER of the module",
                ) from error
            what = "its construction" if located else "the import of its module"
            raise raised(field, target, what, cause, log) from error
        kind = type(data)
        if not (hasattr(kind, "__len__") and hasattr(kind, "__getitem__")):
            raise DataError(
                field,
                target,
                f"{kind.__name__} is no map-style dataset; __len__ and __getitem__ are needed; an "
                "iterable one cannot be shuffled or resumed: give items by number",
            )
        return data
