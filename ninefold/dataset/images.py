"""The image files in a dataset's folder: found and checked, with errors that name the file."""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, ClassVar, TypeVar

import numpy as np
import numpy.typing as npt
from PIL import Image, ImageOps

from ninefold.dataset.arrays import FileArray, Split
from ninefold.errors import DataError, Failure, memory_failure
from ninefold.files import require_regular
from ninefold.numbers import plural
from ninefold.progress import bar

ENDINGS = (".jpg", ".jpeg", ".png", ".webp", ".bmp", ".tif", ".tiff", ".ppm", ".pgm")
MODES = {1: "L", 3: "RGB"}
FOLDERS: dict[str, tuple[str, ...]] = {  # of each split, the first that is there
    "train": ("train",),
    "val": ("val", "valid", "validation"),
    "test": ("test", "val", "valid", "validation"),
}
OPENED = 5000  # files that `prepare` opens, which takes a second or two


T = TypeVar("T")


@dataclass(frozen=True)
class ImageTree:
    """The folder `dataset.root` of a dataset of image files. All its methods raise DataError.

    holds: what it must hold, for error lines. kind, usable: what its files are, and which can be
        read. field: the key that names it.
    """

    root: str | None
    holds: str
    kind: str = "image"
    usable: str = "whole files of 8 bits per channel that Pillow reads are"
    field: str = "dataset.root"

    def wrong(self, wrong: str, found: str, do: str) -> DataError:
        return DataError(self.field, "null" if self.root is None else self.root, wrong, found, do)

    def bad(self, path: str, wrong: str) -> DataError:
        """The failure of the file `path`."""
        said = f"{path} is no usable {self.kind} ({wrong})"
        return self.wrong(said, self.usable, "replace or remove it")

    @property
    def path(self) -> Path:
        if self.root is None:
            raise self.wrong(
                "no folder is given", f"it holds {self.holds}", "set dataset.root=FOLDER"
            )
        root = Path(self.root).expanduser()
        if not root.is_dir():
            raise self.wrong(
                "not a folder" if root.exists() else "no such folder",
                f"looked for {root.absolute()}",
                f"set dataset.root to a folder that holds {self.holds}",
            )
        return root

    def entries(self, folder: str | Path) -> list[os.DirEntry[str]]:
        """The entries of `folder`, except hidden files, which macOS adds."""
        try:
            with os.scandir(folder) as entries:
                found = [entry for entry in entries if not entry.name.startswith(".")]
            for entry in found:
                entry.is_dir()  # fails where a link leads to itself, here and not later
            return found
        except OSError as error:
            raise self.wrong(
                f"{error.filename or folder} cannot be read",
                error.strerror or type(error).__name__,
                "see that it can be read",
            ) from error

    def listing(self, folder: str | Path) -> str:
        """The first names in `folder`, for error lines."""
        return f"found {listed(entry.name for entry in self.entries(folder))}"

    def images(self, folder: str | Path) -> list[str]:
        """The paths of the image files in `folder`, not in folders below, sorted."""
        return sorted(
            entry.path
            for entry in self.entries(folder)
            if entry.name.lower().endswith(ENDINGS) and not entry.is_dir()
        )

    def masks_of(
        self, names: Sequence[str], masks: Iterable[tuple[str, str]], folder: Path, of: str, do: str
    ) -> list[str]:
        """The path of the mask of each image or case, by the names that these must have.

        masks: names and paths in `folder`. of: image or case. do: what to do where one is missing.
        """
        found: dict[str, str] = {}
        for name, path in masks:
            if found.setdefault(name, path) != path:
                raise self.wrong(
                    f"{found[name]} and {path} are masks of one {of}",
                    f"one mask for each {of} is allowed",
                    "remove one of them",
                )
        if lacking := [name for name in names if name not in found]:
            have = plural(lacking, "has", "have")
            raise self.wrong(
                f"{len(lacking):,} of {len(names):,} {of}s {have} no mask",
                f"looked for {lacking[0]} in {folder}, which holds {listed(found)}",
                do,
            )
        return [found[name] for name in names]

    def elsewhere(self, data: Callable[[Path], bool], otherwise: str | None = None) -> str:
        """What to do where `root` holds no data: name a folder in it that does, if there is one.

        data: whether a folder holds it. otherwise: what to do if none does.
        """
        for entry in sorted(self.entries(self.path), key=lambda entry: entry.name):
            if entry.is_dir() and data(Path(entry.path)):
                return f"set dataset.root={entry.path}"
        return otherwise or f"it must hold {self.holds}"

    def require_readable(self, paths: Sequence[str]) -> None:
        """Raise DataError unless all are regular, readable files that are not empty."""
        for path in bar(paths, f"checking the {self.kind}s", unit="file", delay=1.0):
            with self.reading(path, in_file=False):  # a status is asked for once, as on a share
                found = os.stat(path)
                require_regular(found, path)
                if not found.st_size:
                    raise ValueError("it has 0 bytes")
                if not os.access(path, os.R_OK):
                    raise ValueError("permission denied")

    @contextmanager
    def reading(self, path: str, in_file: bool = True) -> Iterator[None]:
        """In the block `path` is read; an error in it is raised as that of a bad file.

        Damaged files raise many types; opening what has become a FIFO would block for ever.
        in_file: whether `path` is a file, and no other name of an image.
        """
        try:
            if in_file:
                require_regular(os.stat(path), path)
            yield
        except (MemoryError, Failure):
            raise
        except Exception as error:  # the name need not be said twice
            if exhausted := memory_failure(error, f"{path} was being read"):
                raise exhausted from error
            raise self.bad(path, reason(error).replace(f" {path!r}", "")) from error


def splits_in(there: Callable[[str], object]) -> tuple[Split, ...]:
    """The splits, by which folders are `there`: without one for test, val is the test split."""
    validates = there("test") and any(map(there, FOLDERS["val"]))
    return ("train", "val", "test") if validates else ("train", "test")


def require_shape(shape: Sequence[int]) -> None:
    """Raise DataError unless images can be made of `shape`."""
    if (
        len(shape) != 3
        or shape[0] not in MODES
        or not all(isinstance(side, int) and side > 0 for side in shape)
    ):
        wrong = "images cannot be made so"
        allowed = "[1 or 3 channels, height, width] is allowed"
        raise DataError("dataset.shape", list(shape), wrong, allowed, "correct dataset.shape")


def spread(items: Sequence[T], count: int | None) -> list[T]:
    """`count` of `items`, evenly spaced; all of them if there are no more, or for None."""
    count = len(items) if count is None else min(count, len(items))
    return [items[number * len(items) // count] for number in range(count)]


def unlike_classes(found: Mapping[Any, Collection[str]]) -> tuple[str, str] | None:
    """Return how the classes of one differ from those of the first, and in what; None: in nothing.

    found: the class names of splits, or of checkpoint and dataset, by class index.
    """
    (first, wanted), *others = found.items()
    for name, own in others:
        if [*own] != [*wanted]:
            only = {first: {*wanted} - {*own}, name: {*own} - {*wanted}}
            said = [f"only in {where}: {listed(who)}" for where, who in only.items() if who]
            kinds = {"train": "training", "val": "validation"}
            both = " and ".join(kinds.get(where, where) for where in only)
            return f"{both} classes differ", "; ".join(said) or "they are in another order"
    return None


def listed(names: Iterable[str]) -> str:
    """The first of `names`, sorted, and how many more there are."""
    found = sorted(names)
    more = f" and {len(found) - 5} more" if len(found) > 5 else ""
    return ", ".join(found[:5]) + more if found else "nothing"


def pixels(
    file: str | BinaryIO, size: tuple[int, ...], exif: bool = False, decode: bool = True
) -> npt.NDArray[np.uint8]:
    """Decode an image file: uint8 [channels, height, width].

    It is converted to gray or RGB (transparency is dropped), center-cropped to the proportions of
    `size` and resized to it, bilinear. The EXIF orientation is ignored, as torchvision does, unless
    `exif`.

    decode: False only checks its header. Raises what Pillow raises, of many types.
    """
    channels, height, width = size
    with Image.open(file) as image:
        require_limit(image)
        if image.mode.startswith(("I", "F")):
            raise ValueError(f"its pixels, mode {image.mode}, have more than 8 bits")
        if not decode:
            return np.empty(0, np.uint8)
        # A JPEG much larger than needed is decoded at a half, a quarter or an eighth.
        needed = (2 * max(width, height),) * 2 if exif else (2 * width, 2 * height)
        image.draft(None, needed)
        turned = ImageOps.exif_transpose(image) if exif else image
        plain = turned if turned.mode == MODES[channels] else turned.convert(MODES[channels])
        if plain.size != (width, height):
            plain = ImageOps.fit(plain, (width, height), Image.Resampling.BILINEAR)
        found = np.asarray(plain)
        return found[None] if found.ndim == 2 else found.transpose(2, 0, 1)


def require_limit(image: Image.Image) -> None:
    """Raise ValueError for more pixels than Pillow warns of; it refuses twice as many itself."""
    count, most = image.width * image.height, Image.MAX_IMAGE_PIXELS
    if most is not None and count > most:
        raise ValueError(f"Image size ({count} pixels) exceeds limit of {most} pixels")


@dataclass(frozen=True)
class ImageFiles(FileArray):
    """Images in files, decoded to uint8 [n, channels, height, width] as `pixels` does it."""

    paths: Sequence[str]
    size: tuple[int, ...]
    tree: ImageTree
    exif: bool = False
    dtype: ClassVar[type[np.uint8]] = np.uint8

    def __post_init__(self) -> None:
        ignore_warnings()

    def decoded(self, path: str, decode: bool = True) -> npt.NDArray[np.uint8]:
        with self.tree.reading(path):
            return pixels(path, self.size, self.exif, decode)


def ignore_warnings() -> None:
    """Ignore Pillow's, which are about metadata.

    For the whole process, as warning filters are not per thread.
    """
    warnings.filterwarnings("ignore", module="PIL")


def reason(error: Exception) -> str:
    """Why a file could not be read, in the words of the system or of a library."""
    return getattr(error, "strerror", None) or str(error) or type(error).__name__
