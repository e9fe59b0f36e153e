"""Any map-style Dataset class of the user: __len__ and __getitem__, built from its _target_."""

from __future__ import annotations

import inspect
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from importlib import import_module
from typing import TYPE_CHECKING, Any

import numpy as np
from hydra.errors import InstantiationException
from hydra.utils import instantiate

from ninefold.dataset import Dataset, Examples, Split
from ninefold.dataset.arrays import ArraySpec, Reading, Rows, specs
from ninefold.dataset.images import unlike_classes
from ninefold.dataset.items import (
    TO_TENSOR,
    Column,
    Items,
    first_cause,
    generators,
    is_by_number,
    is_integers,
    raised,
)
from ninefold.dataset.masks import ClassNumbers, require_void
from ninefold.errors import ConfigError, DataError, users_frame
from ninefold.result import AS_FLOAT32
from ninefold.tree import Tree, filled, leaves, parts_of, shapes

if TYPE_CHECKING:  # it imports torch
    from ninefold.dataset.item_loader import ItemLoader

CHANNELS = (1, 3, 4)  # of images
VAL_IS_RANDOM = (  # a note
    "The examples that dataset.val keeps have the random transforms of dataset.train: functions "
    "that return parts of one set can leave them out of the part to validate on."
)


@dataclass(frozen=True, kw_only=True)
class Mapped(Dataset):
    """Items of the classes that `train` and `test` describe: (input, target), or mappings.

    torch's default_collate makes batches of them, as in a DataLoader: of numbers, arrays and
    tensors, and of tuples and dicts of these for a network of several inputs. Floats become
    float32, integers int64; bytes (uint8) and bools stay. Images have channels first. A target is a
    class, a mask of class numbers, or anything that an input may be. An item without a target, an
    input alone, is its own target. torch, numpy and random are seeded for each item by (seed,
    epoch, index), in evaluations by (0, 0, index). loader.workers are processes, as those of
    torch's DataLoader: most classes are written for these, and the generators that a class draws
    from belong to a whole process.
    """

    train: Mapping[str, Any] | None = None
    test: Mapping[str, Any] | None = None
    keys: Sequence[Any] | None = None
    shape: Any = None
    ignore: int | None = 255  # the number of a mask's pixels that do not count; None: all count
    class_names: Sequence[str] | None = None
    # What was built for each split: a class may read all of its files when it is built.
    _built: dict[str, Items] = field(default_factory=dict, init=False, repr=False, compare=False)
    _loaders: list[ItemLoader] = field(default_factory=list, init=False, repr=False, compare=False)

    def prepare(self) -> None:
        """Build both classes and read some items, in the launcher: what they download is there
        before several processes build them. Raises DataError, ConfigError.
        """
        splits: tuple[Split, ...] = ("train", "test")
        for split in splits:
            items = self._items(split)
            items.require_usable()
            self._require_shape(items)
            if self.cache is not None:
                items.require_no_random_transforms(self.cache)
        names = {split: self._items(split).class_names for split in splits}
        if self.classes is None and all(names.values()) and (wrong := unlike_classes(names)):
            do = "give both the same classes, or set dataset.classes if only their numbers count"
            raise self._items("test").wrong(*wrong, do)

    def start_workers(self, count: int, splits: Sequence[Split], patience: float) -> None:
        """Fork the worker processes, before this one reads anything.

        So a file or a database that the class opens for its first item is opened by each.
        """
        for split in splits:
            self._items(split)
        from ninefold.dataset.item_loader import ItemLoader  # it imports torch

        self._loaders.append(ItemLoader(self._items, count, patience))

    def stop_workers(self) -> None:
        for loader in self._loaders:
            loader.close()

    def load(self, split: Split) -> Examples:
        items, names = self._items(split), tuple(self.class_names or ())
        columns = (Column(items, part) for part in range(len(leaves(items.first))))
        inputs, targets = filled(items.first, columns)
        examples = Examples(inputs, targets, names, partial(self._read, split))
        return examples.first(self.limit_of(split))

    @property
    def notes(self) -> list[str]:
        found = [AS_FLOAT32] if any(items.float64 for items in self._built.values()) else []
        if self.val and self.cache is None and self._items("train").random_item() is not None:
            found.append(VAL_IS_RANDOM)
        return found

    def count_classes(self) -> int | None:
        """As the class says by `classes`, `targets` or `labels`, where targets are classes; of a
        target of several labels 0 and 1, or numbers, as many as it has.
        """
        items = self._items("train")
        _, targets = items.looked_at()
        if not hasattr(targets, "shape") or items.masked or items.unlabeled:
            return None
        if targets.ndim == 1:
            return None if targets.is_floating_point() else said_classes(items.data)
        several = targets.is_floating_point() or bool(((targets == 0) | (targets == 1)).all())
        return targets.shape[1] if several and targets.ndim in (2, 4) else None

    def item_shape(self) -> Tree:
        """As the first training item has it."""
        return shapes(self._items("train").first[0])

    @property
    def counts(self) -> str:
        """Images and volumes, or rows of a table or anything else."""
        one = specs(self.shape)
        return "images" if isinstance(one, ArraySpec) and len(one.shape) in (3, 4) else "rows"

    def sources(self, split: Split) -> Sequence[str]:
        """The source file of the class."""
        module, _, name = self._node(split)["_target_"].rpartition(".")
        try:
            file = inspect.getsourcefile(getattr(import_module(module), name))
        except (ImportError, AttributeError, TypeError):  # built in, or written in C
            file = None
        return [] if file is None else [file]

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

    def _items(self, split: Split) -> Items:
        """The items of a split, of an object that is built once."""
        if split not in self._built:
            self._built[split] = self._made(split)
        return self._built[split]

    def _made(self, split: Split) -> Items:
        name, node = f"dataset.{split}", self._node(split)
        numbers = None if self.classes is None else ClassNumbers(self.classes, self.ignore)
        data = self._build(name, node)
        return Items(data, name, node["_target_"], self.keys, numbers=numbers)

    def _read(
        self, split: Split, batches: Sequence[Rows], *, seed: int = 0, epoch: int = 0, ahead: bool
    ) -> Reading:
        """Inputs and targets of batches of a split. ahead: whether worker processes read them."""
        if ahead:
            yield from self._loaders[0].read(split, batches, seed, epoch)
            return
        for rows in batches:
            yield self._items(split).batch(rows, seed, epoch)

    def _require_shape(self, items: Items) -> None:
        """Raise DataError or ConfigError if the first item is not of dataset.shape, or no image
        where one is to be normalized, flipped or cropped.

        With a target that is a vector [k] none is moved: of coordinates, and nothing would tell.
        """
        from ninefold.dataset.preparation import is_image  # it imports torch

        inputs, targets = items.first
        found, image = shapes(inputs), hasattr(inputs, "is_floating_point") and is_image(inputs)
        last = image and len(found) == 3 and found[2] in CHANNELS and found[0] not in CHANNELS
        if last and is_integers(inputs):
            raise items.wrong(
                f"the input of item 0 is {found}, with channels last",
                "bytes of images are [channels, height, width]",
                TO_TENSOR,
            )
        if self.shape is not None and specs(found) != specs(self.shape):
            raise items.wrong(
                f"the input of item 0 is {found}",
                f"dataset.shape has {self.shape}",
                "leave dataset.shape out, or convert it in the class: images have channels first",
            )
        if self.mean is not None and not image:
            wrong = f"an item's input is {parts_of(inputs)} of the shape {found}"
            allowed = "one image or volume is normalized so"
            do = "leave mean and std out and do it in the class"
            raise ConfigError("dataset.mean", list(self.mean), wrong, allowed, do)
        if items.masked:
            require_void(self.crop, self.ignore)
        labeled = hasattr(targets, "ndim") and targets.ndim == 1
        moves = image and inputs.ndim == 4 and (labeled or items.masked or items.unlabeled)
        if (self.flip or self.crop) and not moves:
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
                wrong = f"it cannot be imported ({cause})"
                allowed = "the dotted name of a class in a module on PYTHONPATH is allowed"
                do = "correct it, or PYTHONPATH=FOLDER of the module"
                raise ConfigError(f"{field}._target_", target, wrong, allowed, do) from error
            what = "its construction" if located else "the import of its module"
            raise raised(field, target, what, cause) from error
        if not is_by_number(data):
            wrong = f"{type(data).__name__} is no map-style dataset"
            do = (
                "an "
                "iterable one cannot be shuffled or resumed: give items by number, or compare "
                "scripts of your own with ninefold bench"
            )
            raise DataError(field, target, wrong, "__len__ and __getitem__ are needed", do)
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
