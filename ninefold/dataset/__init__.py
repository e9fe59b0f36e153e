"""Datasets as bytes: one file and one yaml for each; their splits, and what an example is.

Nothing here imports torch, so that the launcher can check a dataset before it starts anything.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from ninefold.dataset.arrays import Array, LazyArray, Reader, Reading, Rows, Selected, Split
from ninefold.errors import ConfigError, DataError
from ninefold.numbers import counted
from ninefold.tree import Tree, each, leaves

if TYPE_CHECKING:  # it imports torch, which the checks before the start do not need
    from ninefold.engine.batches import Preparation

__all__ = ["Dataset", "Examples", "LazyArray", "Selected", "Split", "as_dataset"]


@dataclass(frozen=True)
class Examples:
    """Inputs and what is to be predicted of each.

    inputs: an array, or a tree of them (a tuple, a list or a dict) where a network takes several.
        Images are uint8 [n, channels, height, width], volumes uint8 or int16 [n, channels, depth,
        height, width]; anything else is [n, ...] of any dtype that torch has.
    targets: classes int64 [n], masks uint8 or int16 [n, (depth,) height, width], points
        float32 [n, k, 3], NaN where one is absent; or what the task takes, trees too.
    names: of the classes or points, where the data itself says.
    reader: reads batches of items of a user's class; None: the arrays are read one by one.
    """

    inputs: Tree
    targets: Tree
    names: Sequence[str] = ()
    reader: Reader | None = None

    def __len__(self) -> int:
        return len(leaves(self.targets)[0])

    def first(self, count: int | None) -> Examples:
        """The first `count` examples; all of them for None."""
        return self._of(lambda array: array[:count], self.reader)

    def select(self, rows: Rows) -> Examples:
        """The examples of these numbers; images in files stay unread."""
        reader = self.reader and partial(_read_selected, self.reader, rows)
        return self._of(lambda array: Selected(array, rows), reader)

    def in_epoch(self, seed: int, epoch: int) -> Examples:
        """The examples as training with `seed` reads them in `epoch`, with its draws."""
        reader = self.reader and partial(self.reader, seed=seed, epoch=epoch)
        return self._of(lambda array: array, reader)

    @property
    def arrays(self) -> list[Array]:
        """The arrays of inputs and targets."""
        return leaves((self.inputs, self.targets))

    def _of(self, change: Callable[[Array], Array], reader: Reader | None) -> Examples:
        """The same with other arrays, and with what reads these."""
        return Examples(each(change, self.inputs), each(change, self.targets), self.names, reader)


def _read_selected(reader: Reader, rows: Rows, batches: Sequence[Rows], **how: int) -> Reading:
    return reader([rows[batch] for batch in batches], **how)


@dataclass(frozen=True, kw_only=True)
class Dataset:
    """The base class of datasets: a yaml's keys as fields, and examples by `load`, in splits.

    Only `load` must be written.

    limit: the number of training examples to use; None: all.
    classes: None: as many as `count_classes` says.
    shape: channels, (depth,) height, width; of anything else any numbers, of several inputs a list
        or a dict of shapes; None: as `item_shape` says.
    mean, std: per channel, of pixels in 0..1; None leaves pixels in 0..1.
    flip, crop: augmentation in training: mirror at random; pad by so many pixels and crop.
    val: the share of the training examples held out for validation, without a split for it.
    resident: whether to copy the examples to a GPU once, see `ninefold.dataset.plan`.
    cache, cache_dir: whether and where decoded examples are kept, see `ninefold.dataset.cache`.

    random_inputs: whether they were drawn at random, so that a score says nothing.
    """

    random_inputs: ClassVar[bool] = False

    root: str | None = None
    limit: int | None = None
    classes: int | None = None
    shape: Sequence[int] = ()
    mean: Sequence[float] | None = None
    std: Sequence[float] | None = None
    flip: bool = False
    crop: int = 0
    val: float = 0
    resident: bool | str = "auto"
    cache: str | None = None
    cache_dir: str = "~/.cache/ninefold"

    @property
    def notes(self) -> list[str]:
        """Sentences for the result on how the examples are used, after `load`."""
        return []

    @property
    def splits(self) -> Sequence[Split]:
        """The splits that there are."""
        return ("train", "test")

    def limit_of(self, split: Split) -> int | None:
        """How many examples of `split` to use; None: all."""
        return self.limit if split == "train" else None

    def prepare(self) -> None:
        """Check the files, or fetch them. Raises DataError. Called once, by the launcher."""

    def load(self, split: Split) -> Examples:
        """The examples of `split`, of "train" the first `limit`.

        Raises DataError if they cannot be read or are not what the configuration says.
        """
        raise NotImplementedError

    def sources(self, split: Split) -> Sequence[str]:
        """Paths of the files that the examples of `split` are read from, as far as known.

        A cache on disk is made again when one of them has changed.
        """
        return ()

    def item_shape(self) -> Tree | None:
        """The shape of an example's input, for dataset.shape=null; None: it does not say.

        Called in the launcher, before `prepare`. A list of numbers, or a tuple or a dict of such.
        """
        return None

    @property
    def counts(self) -> str:
        """What its examples are called in figures such as images per second, after `load`."""
        return "images"

    def count_classes(self) -> int | None:
        """The number of classes that the data has, after `prepare`; None: it does not say."""
        return None

    def preparation(self, **options: Any) -> Preparation:
        """What turns a batch into the network's input, with the augmentation: images and masks move
        together, and pixels outside of a crop are void, if there is an `ignore`.

        Inputs that are no images [c, h, w] are left as they are. options: channels, size, mean,
        std, flip, crop and memory_format of ImagePreparation.
        """
        from ninefold.dataset.preparation import ImagePreparation  # it imports torch

        return ImagePreparation(**{"outside": getattr(self, "ignore", None) or 0, **options})

    def start_workers(self, count: int, splits: Sequence[Split], patience: float) -> None:
        """Start `count` processes that read the examples of these splits, before `load`.

        By default it starts none, and threads read. patience: seconds that a batch may take.
        """

    def stop_workers(self) -> None:
        """End the processes that were started, where nothing is to be read by them."""


def as_dataset(built: object) -> Dataset:
    """What the section `dataset` has built, if it is a Dataset. Raises ConfigError."""
    if isinstance(built, Dataset):
        return built
    kind = f"{type(built).__module__}.{type(built).__qualname__}"
    allowed = "a class that extends ninefold.dataset.Dataset is allowed"
    do = "extend it, or name a class of items by dataset=mapped"
    raise ConfigError("dataset._target_", kind, "it is no Dataset", allowed, do)


def train_and_val(
    dataset: Dataset, seed: int, load: Callable[[Split], Examples] | None = None
) -> tuple[Examples, Examples | None]:
    """The training split, and a validation split if there is to be one.

    load: in place of the dataset's own, such as that of its cache.

    A dataset that names `val` among its splits has its own. From any other the share `dataset.val`
    of the training examples is drawn by the seed; 0: no validation split. Raises DataError.
    """
    load = load or dataset.load
    train = load("train")
    if "val" in dataset.splits:
        if dataset.val:
            wrong = "the dataset has a validation split"
            allowed = "a share is drawn from the training examples only where there is none"
            do = "set dataset.val=0 to use the one it has"
            raise DataError("dataset.val", dataset.val, wrong, allowed, do)
        return train, load("val")
    count = val_count(dataset, len(train))
    if not count:
        return train, None
    if count >= len(train):
        wrong = "no training examples are left"
        allowed = f"{counted(len(train), 'example')} found, {count} taken for validation"
        raise DataError("dataset.val", dataset.val, wrong, allowed, "lower dataset.val")
    # Three numbers, as two of them, seed and epoch, give the order of an epoch.
    order = np.random.default_rng([seed, 0, 1]).permutation(len(train))
    return train.select(np.sort(order[count:])), train.select(np.sort(order[:count]))


def val_count(dataset: Dataset, count: int) -> int:
    """How many of `count` training examples are held out for validation."""
    share = 0 if "val" in dataset.splits else dataset.val
    return max(1, round(share * count)) if share else 0


def checked(name: str, dataset: Dataset, examples: Examples) -> Examples:
    """`examples`, if their shape and classes are what `dataset` says. Raises DataError."""
    shape = list(examples.inputs.shape[1:])
    if shape != list(dataset.shape):
        wrong = f"{name} holds other images"
        do = "set dataset.shape to what was found"
        raise DataError("dataset.shape", list(dataset.shape), wrong, f"found {shape}", do)
    targets = np.asarray(examples.targets)
    if not len(targets):
        do = "choose another set, or split"
        raise DataError("dataset", name, "it has no examples", "one at least is allowed", do)
    low, high = int(targets.min()), int(targets.max())
    classes = high + 1 if dataset.classes is None else dataset.classes
    if low < 0 or high >= classes:
        wrong = f"{name} has labels from {low} to {high}"
        allowed = f"labels below {classes} are allowed" if low >= 0 else "labels begin with 0"
        do = f"set dataset.classes={high + 1}" if low >= 0 else "choose another set, or split"
        raise DataError("dataset.classes", classes, wrong, allowed, do)
    return examples
