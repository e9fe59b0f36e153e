"""Hugging Face datasets: folders of save_to_disk, parquet files, or the hub; images and classes."""

from __future__ import annotations

import io
import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from ninefold.dataset import Dataset, Examples, Split, checked
from ninefold.dataset.arrays import LazyArray, Rows
from ninefold.dataset.images import (
    ImageTree,
    ignore_warnings,
    listed,
    pixels,
    reason,
    require_shape,
    unlike_classes,
)
from ninefold.errors import ConfigError, DataError, Failure, memory_failure, not_installed

NAME = r"\w[\w.-]*(/\w[\w.-]*)?"  # of a dataset of the hub: no path, no address
TRUE = ("1", "ON", "YES", "TRUE")  # as the library reads its environment variables


@dataclass(frozen=True)
class HF(Dataset):
    """Images and classes of a Hugging Face dataset, read with the library `datasets`.

    The library's own files are used, never code that comes with a dataset. `limit` takes the first
    training examples.
    """

    root: str | None = None
    name: str | None = None
    config: str | None = None
    revision: str | None = None
    download: bool = False
    train: str = "train"
    test: str = "test"
    image: str | None = "image"
    label: str | None = "label"
    class_names: Sequence[str] | None = None
    shape: Sequence[int] = (3, 224, 224)
    flip: bool = True
    exif: bool = False

    def prepare(self) -> None:
        """Fetch it if asked to, and check splits, columns, labels and the first image of each."""
        if self.download and self.name is not None:
            self._splits(fetch=True)
        require_shape(self.shape)
        splits: tuple[Split, ...] = ("train", "test")
        for split in splits:
            examples = self.load(split)
            examples.inputs[np.arange(1)]
        names = {split: self._names(self._table(split)) for split in splits}
        if all(names.values()) and (wrong := unlike_classes(names)):
            raise self._tree.wrong(*wrong, "cast both label columns to the same ClassLabel")

    def count_classes(self) -> int:
        table = self._table("train")
        return len(self._names(table)) or int(self._labels(table, "train").max()) + 1

    def load(self, split: Split) -> Examples:
        table = self._table(split)
        images = Pictures(
            table.select_columns([self.image]).with_format("arrow"),
            tuple(self.shape),
            self._tree,
            self.exif,
        )
        labels = self._labels(table, split)
        examples = Examples(images, labels, tuple(self.class_names or self._names(table)))
        found = checked(f"the split {getattr(self, split)}", self, examples)
        return found.first(self.limit_of(split))

    def _names(self, table: Any) -> Sequence[str]:
        """The names that a table's column of labels has of the classes, in order."""
        return getattr(table.features[self.label], "names", None) or ()

    def sources(self, split: Split) -> Sequence[str]:
        return [str(file["filename"]) for file in self._table(split).cache_files]

    @property
    def _tree(self) -> ImageTree:
        """Where the data is, for errors: its name on the hub, or its folder."""
        if self.name is not None:
            return ImageTree(self.name, "", field="dataset.name")
        return ImageTree(self.root, "what save_to_disk writes, or parquet files")

    def _table(self, split: Split) -> Any:
        """The datasets.Dataset of a split, its columns checked, its images undecoded."""
        splits, name = self._splits(), getattr(self, split)
        if name not in splits:
            allowed = f"found {listed(splits)} in {self._tree.root}"
            do = f"set dataset.{split}"
            raise DataError(f"dataset.{split}", name, "no such split", allowed, do)
        table = splits[name]
        for key, column in (("image", self.image), ("label", self.label)):
            if column not in table.features:
                wrong = f"the split {name} has no such column"
                allowed = f"found {listed(table.features)}"
                raise DataError(f"dataset.{key}", column, wrong, allowed, f"set dataset.{key}")
        return self._undecoded(table)

    def _undecoded(self, table: Any) -> Any:
        """`table` with its images as {bytes, path}. Raises DataError if they are something else."""
        from datasets import Image

        feature = table.features[self.image]
        if isinstance(feature, Image):
            return table.cast_column(self.image, Image(decode=False))
        if isinstance(feature, Mapping) and {"bytes", "path"} <= feature.keys():
            return table  # written without the library's metadata
        wrong = f"the column holds {' '.join(str(feature).split())[:80]}"
        allowed = "image files, which the library calls Image, are allowed"
        raise DataError("dataset.image", self.image, wrong, allowed, "name another column")

    def _labels(self, table: Any, split: Split) -> npt.NDArray[np.int64]:
        column = table.select_columns([self.label]).with_format("numpy")[:][self.label]
        labels = np.asarray(column)
        if labels.ndim != 1 or labels.dtype.kind not in "iu":
            wrong = f"the column holds {' '.join(str(table.features[self.label]).split())[:80]}"
            allowed = "class numbers are allowed, none of them missing"
            raise DataError("dataset.label", self.label, wrong, allowed, "name another column")
        return labels.astype(np.int64)

    def _splits(self, fetch: bool = False) -> Any:
        """The datasets.Dataset of each split that there is."""
        if (self.root is None) == (self.name is None):
            raise ConfigError(
                "dataset.root",
                "null" if self.root is None else self.root,
                "no data is named" if self.root is None else "dataset.name is given too",
                "a folder (dataset.root) or a dataset of the hub (dataset.name) is allowed",
                "set one of them",
            )
        try:
            import datasets
            import huggingface_hub
        except ModuleNotFoundError as error:
            raise not_installed("dataset", "hf", "datasets", "hf") from error
        if not fetch:
            datasets.disable_progress_bars()
        # What the environment says at first; otherwise only a download may ask anything of the hub.
        offline = not fetch or os.environ.get("HF_HUB_OFFLINE", "0").upper() in TRUE
        asked: tuple[Any, ...] = huggingface_hub.constants, datasets.config
        before = [(module, module.HF_HUB_OFFLINE) for module in asked]
        for module in asked:
            module.HF_HUB_OFFLINE = offline
        try:
            return self._from_hub(datasets) if self.root is None else self._from_root(datasets)
        except Failure:
            raise
        except Exception as error:  # of pyarrow, of the library and of the network
            if exhausted := memory_failure(error, "a dataset was being opened"):
                raise exhausted from error
            said = reason(error).partition("\n")[0]
            if self.name is not None and not self.download:
                raise self._tree.wrong(
                    "it is not on this machine",
                    f"the library says: {said}",
                    "set dataset.download=true, or dataset.root to a folder",
                ) from error
            raise self._tree.wrong(
                f"it cannot be {'read' if self.name is None else 'fetched'} ({said})",
                "what DatasetDict.save_to_disk writes, parquet files and the hub are read",
                "write it again" if self.name is None else "fetch it elsewhere: dataset.root",
            ) from error
        finally:  # a model's weights may be fetched
            for module, was in before:
                module.HF_HUB_OFFLINE = was

    def _from_hub(self, datasets: Any) -> Any:
        assert self.name is not None
        if not re.fullmatch(NAME, self.name):
            allowed = "NAME or OWNER/NAME is allowed"
            do = "give a folder as dataset.root"
            raise ConfigError("dataset.name", self.name, "it is no name of the hub", allowed, do)
        return datasets.load_dataset(self.name, self.config, revision=self.revision)

    def _from_root(self, datasets: Any) -> Any:
        root = self._tree.path
        if (root / "dataset_dict.json").is_file():
            return datasets.load_from_disk(str(root))
        # The library knows the splits by the names of files and folders.
        return datasets.load_dataset("parquet", data_dir=str(root))


@dataclass(frozen=True)
class Pictures(LazyArray):
    """Image files in an arrow table, decoded to uint8 [n, *size] as `pixels` does it.

    table: a datasets.Dataset in arrow format with one column, of {bytes, path}.
    tree: where it is, for errors.
    """

    table: Any
    size: tuple[int, ...]
    tree: ImageTree
    exif: bool = False

    def __post_init__(self) -> None:
        ignore_warnings()

    @property
    def shape(self) -> tuple[int, ...]:
        return (len(self.table), *self.size)

    def read(self, rows: Rows) -> npt.NDArray[np.uint8]:
        images = np.empty((len(rows), *self.size), np.uint8)
        files = self.table[rows.tolist()].column(0)
        for image, file, row in zip(images, files, rows.tolist(), strict=True):
            with self.tree.reading(f"row {row}", in_file=False):
                content = file.as_py()
                if content is None:
                    raise ValueError("it has none")
                data = content["bytes"]
                found = content["path"] if data is None else io.BytesIO(data)
                image[:] = pixels(found, self.size, self.exif)
        return images
