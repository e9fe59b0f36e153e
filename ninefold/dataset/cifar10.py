"""CIFAR-10 from its official folders, binary or python, read whole into memory."""

from __future__ import annotations

import io
import pickle
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from ninefold.dataset import Dataset, Examples, Split, checked
from ninefold.dataset.images import ImageTree
from ninefold.errors import DataError
from ninefold.files import read_bytes
from ninefold.numbers import counted
from ninefold.progress import bar

FILES: dict[Split, list[str]] = {
    "train": [f"data_batch_{k}" for k in range(1, 6)],
    "test": ["test_batch"],
}
BINARY, PYTHON = "cifar-10-batches-bin", "cifar-10-batches-py"
RECORD = 1 + 3 * 32 * 32  # a label byte, then planes of red, green and blue


@dataclass(frozen=True)
class CIFAR10(Dataset):
    """50,000 training and 10,000 test images under `root`, or in it."""

    root: str = "~/.cache/cifar10"
    download: bool = False
    classes: int = 10
    shape: Sequence[int] = (3, 32, 32)
    flip: bool = True
    crop: int = 4
    class_names: Sequence[str] = ()  # for reading an evaluation

    def prepare(self) -> None:
        if self.download and not self._folders():
            from torchvision import datasets

            try:
                datasets.CIFAR10(Path(self.root).expanduser(), download=True)
            except Exception as error:  # the network fails in many types
                wrong = f"CIFAR-10 could not be fetched ({error})"
                allowed = f"nothing usable in {Path(self.root).expanduser()}"
                do = f"fetch it by other means and put {BINARY} or {PYTHON} there"
                raise DataError("dataset.download", "true", wrong, allowed, do) from error
        self._require_folder()

    def load(self, split: Split) -> Examples:
        folder, names = self._require_folder(), FILES[split]
        parts = [
            self._read(folder, name)
            for name in bar(names, "loading CIFAR-10", unit="file", delay=1.0)
        ]
        records = np.concatenate(parts)
        images = np.ascontiguousarray(records[:, 1:]).reshape(-1, 3, 32, 32)
        examples = checked("CIFAR-10", self, Examples(images, records[:, 0].astype(np.int64)))
        return examples.first(self.limit_of(split))

    @property
    def _tree(self) -> ImageTree:
        return ImageTree(self.root, f"{BINARY} or {PYTHON}")

    def _folders(self) -> list[Path]:
        root = Path(self.root).expanduser()
        folders, files = (root / BINARY, root / PYTHON, root), ("test_batch.bin", "test_batch")
        return [f for f in folders if any((f / file).is_file() for file in files)]

    def _require_folder(self) -> Path:
        for folder in self._folders():
            return folder
        raise self._tree.wrong(
            "CIFAR-10 is not there",
            f"looked for {BINARY} and {PYTHON} in {Path(self.root).expanduser().absolute()}",
            "set dataset.root to the folder that holds one of them, or dataset.download=true",
        )

    def _read(self, folder: Path, name: str) -> npt.NDArray[np.uint8]:
        """The records [n, 3073] of one file."""
        binary = folder / f"{name}.bin"
        path = binary if binary.is_file() else folder / name
        try:
            data = read_bytes(path, 1 << 26)  # twice the bytes of the largest file
            if path == binary:
                records = np.frombuffer(data, np.uint8).reshape(-1, RECORD)
            else:
                batch = _Arrays(io.BytesIO(data), encoding="bytes").load()
                labels = np.asarray(batch[b"labels"], np.uint8)
                records = np.concatenate([labels[:, None], batch[b"data"]], axis=1)
        except Exception as error:  # a damaged pickle fails in any type
            raise self._tree.wrong(
                f"{path} cannot be read ({error})",
                f"records of {RECORD} bytes, or the official pickle, are expected",
                "fetch the set again",
            ) from error
        if records.shape != (10_000, RECORD):
            raise self._tree.wrong(
                f"{path} is not whole",
                f"{counted(len(records), 'record')} found, 10000 expected",
                "fetch the set again",
            )
        return records


class _Arrays(pickle.Unpickler):
    """Reads the python version's files, which need numpy arrays and nothing else."""

    ALLOWED = {  # noqa: RUF012
        ("numpy.core.multiarray", "_reconstruct"),
        ("numpy._core.multiarray", "_reconstruct"),
        ("numpy", "ndarray"),
        ("numpy", "dtype"),
        ("_codecs", "encode"),
    }

    def find_class(self, module: str, name: str) -> Any:
        if (module, name) not in self.ALLOWED:
            raise pickle.UnpicklingError(f"it asks for {module}.{name}")
        return super().find_class(module, name)
