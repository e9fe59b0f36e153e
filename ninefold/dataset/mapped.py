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
from ninefold.dataset.arrays import Rows
from ninefold.dataset.class_numbers import ClassNumbers
from ninefold.dataset.draws import generators
from ninefold.dataset.items import Ask, Column, Items, first_cause, raised
from ninefold.dataset.loader_workers import LoaderWorkers, Slot
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
    (0, 0, index). loader.workers are processes, as those of torch's DataLoader: most classes are
    written for these, and the generators that a class draws from belong to a whole process.
    """

    train: Mapping[str, Any] | None = None
    test: Mapping[str, Any] | None = None
    keys: Names = None
    """Keys of the input and the target, in items that are mappings."""
    classes: int = 10
    shape: Sequence[int] = (3, 64, 64)
    thread_safe: bool = False  # and draws nothing from random, numpy.random and torch
    ignore: int | None = 255  # the number of a mask's pixels that do not count; None: all count
    class_names: Sequence[str] | None = None
    # Of a worker process: what it has read from.
    _read_by_worker: dict[str, Items] = field(
        default_factory=dict, init=False, repr=False, compare=False
    )
    # What was built for each split: a class may read all of its files when it is built.
    _built: dict[str, Any] = field(default_factory=dict, init=False, repr=False, compare=False)
    _workers: list[LoaderWorkers] = field(
        default_factory=list, init=False, repr=False, compare=False
    )

    def prepare(self) -> None:
        """Build both classes and read their first items, in the launcher: what they download is
        there before several processes build them. Raises DataError, ConfigError.
        """
        for split in ("train", "test"):
            items = self._items(split, "HYDRA_FULL_ERROR=1 shows the traceback")
            items.require_several_classes()
            if self.thread_safe:
                items.require_no_draws()
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

    def start_workers(self, count: int, splits: Sequence[Split], patience: float) -> None:
        """Fork the worker processes, before this one reads anything.

        So a file or a database that the class opens for its first item is opened by each.
        """
        if self.thread_safe or self.cache is not None:  # threads read what is cached
            return
        for split in splits:
            self._data(split, _log())
        self._workers.append(LoaderWorkers(count, self._answer, patience))

    def _answer(self, question: tuple[Split, Rows, int, int], slot: Slot) -> None:
        """In a worker process: read items into the slot. question: see `_ask`."""
        split, rows, seed, epoch = question
        items = self._read_by_worker.get(split)
        if items is None:
            items = self._read_by_worker[split] = self._items(split, _log())
        items.read(rows, seed, epoch, slot.empty, slot.note)

    def _ask(self, split: Split) -> Ask | None:
        """What asks the worker processes for items of a split; None: there are none."""
        if not self._workers:
            return None
        (workers,) = self._workers
        return lambda rows, seed, epoch: workers.ask((split, rows, seed, epoch))

    def load(self, split: Split) -> Examples:
        items = self._items(split, _log(), self._ask(split))
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

    def _node(self, split: Split) -> dict[str, Any]:
        node = {"train": self.train, "test": self.test}.get(split)
        if hasattr(node, "__getitem__") and not isinstance(node, Mapping | str | list):
            raise ConfigError(
                f"dataset.{split}",
                type(node).__name__,
                "it was built with the section, not for its split; a yaml of your own needs "
                "_recursive_: false, as conf/dataset/mapped.yaml has it; add that line",
            )
        if not isinstance(node, Mapping) or "_target_" not in node:
            raise ConfigError(
                f"dataset.{split}",
                "null" if node is None else node,
                "no class is named; a section with a _target_ and its arguments is allowed; set "
                f"dataset.{split}={{_target_: module.Class, argument: value}} in quotes",
            )
        return dict(node)

    def _items(self, split: Split, log: str, ask: Ask | None = None) -> Items:
        """The items of a split. log: where the traceback of an error in the class can be read."""
        data, target = self._data(split, log), self._node(split)["_target_"]
        numbers = ClassNumbers(self.classes, self.ignore)
        return Items(
            data,
            tuple(self.shape),
            numbers,
            self.keys,
            f"dataset.{split}",
            target,
            log,
            draws=not self.thread_safe,
            ask=ask,
        )

    def _data(self, split: Split, log: str) -> Any:
        """The object of the user's class for a split."""
        if split not in self._built:
            self._built[split] = self._build(f"dataset.{split}", self._node(split), log)
        return self._built[split]

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


def _log() -> str:
    """Where the traceback of an error in a run can be read."""
    rank = found(os.environ).rank
    return f"traceback in run{f'.rank{rank}' if rank else ''}.log"
