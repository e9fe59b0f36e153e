"""Any map-style Dataset class of the user: __len__ and __getitem__, built from its _target_."""

from __future__ import annotations

import inspect
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from importlib import import_module
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
from hydra.errors import InstantiationException
from hydra.utils import instantiate

from ninefold.dataset import Dataset, Examples, Split
from ninefold.dataset.arrays import ArraySpec, Reader, specs
from ninefold.dataset.items import Items, first_cause, generators, raised
from ninefold.dataset.layout import OF_MAPPINGS, Layout, parts_of
from ninefold.dataset.masks import ClassNumbers
from ninefold.errors import ConfigError, DataError, users_frame
from ninefold.tree import Tree

if TYPE_CHECKING:  # it imports torch, which the checks before the start do not need
    from ninefold.dataset.item_loader import ItemLoader, ItemReader


@dataclass(frozen=True, kw_only=True)
class Mapped(Dataset):
    """Items of the classes that `train` and `test` describe: (input, target), or mappings.

    An input is a PIL image, an array or a tensor of `shape`, or a tuple or a dict of these for a
    network of several inputs: bytes (uint8), of images channels first or last, bools, floats, which
    become float32, or other integers, which become int64. A target is a class, a mask of class
    numbers, or anything that an input may be. An item without a target, an input alone, is its own
    target. torch, numpy and random are seeded for each item by (seed, epoch, index), in evaluations
    by (0, 0, index). loader.workers are processes, as those of torch's DataLoader: most classes
    are written for these, and the generators that a class draws from belong to a whole process.
    """

    OF_MAPPINGS: ClassVar[str] = OF_MAPPINGS
    AS_RETURNED: ClassVar[bool] = False  # see Layout

    train: Mapping[str, Any] | None = None
    test: Mapping[str, Any] | None = None
    keys: Sequence[Any] | None = None
    shape: Any = None
    ignore: int | None = 255  # the number of a mask's pixels that do not count; None: all count
    class_names: Sequence[str] | None = None
    # What was built for each split: a class may read all of its files when it is built.
    _built: dict[str, Any] = field(default_factory=dict, init=False, repr=False, compare=False)
    _float64: dict[str, bool] = field(default_factory=dict, init=False, repr=False, compare=False)
    _loaders: list[ItemLoader] = field(default_factory=list, init=False, repr=False, compare=False)

    def prepare(self) -> None:
        """Build both classes and read some items, in the launcher: what they download is there
        before several processes build them. Raises DataError, ConfigError.
        """
        for split in ("train", "test"):
            items = self._items(split)
            items.require_usable()
            if self.cache is not None:
                items.require_no_random_transforms(self.cache)
            self._require_movable(items.layout)
            if self.mean is not None and not items.layout.image:
                raise ConfigError(
                    "dataset.mean",
                    list(self.mean),
                    f"an item's input is {parts_of(items.layout.inputs)}",
                    "one image or volume is normalized so",
                    "leave mean and std out and do it in the class",
                )

    def start_workers(self, count: int, splits: Sequence[Split], patience: float) -> None:
        """Fork the worker processes, before this one reads anything.

        So a file or a database that the class opens for its first item is opened by each.
        """
        if self.cache is not None:  # threads read what is cached
            return
        for split in splits:
            self._data(split)
        from ninefold.dataset.item_loader import ItemLoader  # it imports torch

        self._loaders.append(ItemLoader(self._to_read, count, patience))

    def stop_workers(self) -> None:
        for loader in self._loaders:
            loader.close()

    def load(self, split: Split) -> Examples:
        items, names = self._items(split), tuple(self.class_names or ())
        self._float64[split] = items.layout.float64
        examples = Examples(*items.columns(), names, self._reader(split))
        return examples.first(self.limit_of(split))

    @property
    def narrowed(self) -> bool:
        return any(self._float64.values())

    def count_classes(self) -> int | None:
        """As the class says by `classes`, `targets` or `labels`, where targets are classes; of a
        target of several labels 0 and 1, or numbers, as many as it has.
        """
        items = self._items("train")
        layout, target = items.layout, items.layout.targets
        if not isinstance(target, ArraySpec) or layout.masked or layout.unlabeled:
            return None
        if not target.shape:
            return said_classes(self._built["train"]) if target.dtype == np.int64 else None
        several = target.dtype == np.float32 or np.isin(items.looked_at(), (0, 1)).all()
        return target.shape[0] if several and len(target.shape) in (1, 3) else None

    def item_shape(self) -> Tree:
        """As the first training item has it."""
        return self._items("train").layout.shape

    @property
    def counts(self) -> str:
        """Images and volumes, or rows of a table or anything else."""
        one = specs(self.shape)
        return "images" if isinstance(one, ArraySpec) and len(one.shape) in (3, 4) else "rows"

    def sources(self, split: Split) -> Sequence[str]:
        """The source file of the class."""
        module, _, name = self._node(split)["_target_"].rpartition(".")
        try:
            return [str(inspect.getsourcefile(getattr(import_module(module), name)))]
        except (ImportError, AttributeError, TypeError):  # built in, or written in C
            return []

    def _node(self, split: Split) -> dict[str, Any]:
        node = {"train": self.train, "test": self.test}.get(split)
        if not isinstance(node, Mapping) or "_target_" not in node:
            raise ConfigError(
                f"dataset.{split}",
                "null" if node is None else node,
                "no class is named",
                "a section with a _target_ and its arguments is allowed",
                f"set dataset.{split}={{_target_: module.Class, argument: value}} in quotes",
            )
        return dict(node)

    def _items(self, split: Split, whole: bool = False) -> Items:
        """The checked items of a split. whole: see Layout."""
        data, target = self._data(split), self._node(split)["_target_"]
        numbers = None if self.classes is None else ClassNumbers(self.classes, self.ignore)
        shape = None if self.shape is None else specs(self.shape)
        layout = Layout(
            f"dataset.{split}",
            target,
            numbers,
            self.keys,
            whole,
            self.AS_RETURNED,
            self.OF_MAPPINGS,
            shape,
        )
        return Items(data, layout)

    def _reader(self, split: Split) -> Reader | None:
        """What reads batches of a split by worker processes; None: there are none."""
        return partial(self._loaders[0].read, split) if self._loaders else None

    def _to_read(self, split: Split) -> ItemReader:
        """What worker processes read batches of a split from."""
        return self._items(split)

    def _data(self, split: Split) -> Any:
        """The object of the user's class for a split."""
        if split not in self._built:
            self._built[split] = self._build(f"dataset.{split}", self._node(split))
        return self._built[split]

    def _require_movable(self, layout: Layout) -> None:
        """Raise ConfigError if images are to be flipped or cropped that cannot be.

        A vector [k] is refused too: of coordinates none would move, and nothing would tell.
        """
        target = layout.targets
        moves = isinstance(target, ArraySpec) and (
            not target.shape or layout.masked or layout.unlabeled
        )
        if not (self.flip or self.crop) or (layout.image and len(layout.shape) == 3 and moves):
            return
        raise ConfigError(
            f"dataset.{'flip' if self.flip else 'crop'}",
            "true" if self.flip else self.crop,
            "its items are not moved",
            "images with a class or a mask are",
            "leave it out and do it in the class",
        )

    def _build(self, field: str, node: Mapping[str, Any]) -> Any:
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
                    f"it cannot be imported ({cause})",
                    "the dotted name of a class in a module on PYTHONPATH is allowed",
                    "correct it, or PYTHONPATH=FOLDER of the module",
                ) from error
            what = "its construction" if located else "the import of its module"
            raise raised(field, target, what, cause) from error
        kind = type(data)
        if not (hasattr(kind, "__len__") and hasattr(kind, "__getitem__")):
            raise DataError(
                field,
                target,
                f"{kind.__name__} is no map-style dataset",
                "__len__ and __getitem__ are needed",
                "an "
                "iterable one cannot be shuffled or resumed: give items by number, or compare "
                "scripts of your own with ninefold bench",
            )
        return data


def said_classes(data: Any) -> int | None:
    """The number of classes that a user's dataset says as torchvision's do; None: it says none.

    By `classes`, their names or their number, or by `targets` or `labels`, the class of each item.
    """
    classes = getattr(data, "classes", None)
    if isinstance(classes, int | Sequence | Mapping) and not isinstance(classes, str | bool):
        return classes if isinstance(classes, int) else len(classes)
    for name in ("targets", "labels"):
        try:
            labels = np.asarray(getattr(data, name))
        except Exception:  # there are none, or they are no array
            continue
        if labels.dtype.kind in "iu" and labels.ndim == 1 and len(labels) == len(data):
            return int(labels.max()) + 1
    return None
