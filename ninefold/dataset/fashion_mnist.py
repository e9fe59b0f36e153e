"""Fashion-MNIST from its four IDX files, which Debian's package dataset-fashion-mnist has."""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from ninefold.dataset import Dataset, Examples, Split, checked
from ninefold.errors import DataError
from ninefold.files import read_bytes

FILES: dict[Split, str] = {"train": "train", "test": "t10k"}
COUNTS: dict[Split, int] = {"train": 60_000, "test": 10_000}
SIDE = 28
MOST = 1 << 26  # bytes of a file, unpacked too: 60,000 images take 47 million
ZIPPED = b"\x1f\x8b"  # how a gzip file begins
DEBIAN = "/usr/share/datasets/fashion-mnist"


@dataclass(frozen=True)
class FashionMNIST(Dataset):
    """60,000 training and 10,000 test images of clothes, gray, 28x28, in ten classes."""

    root: str = DEBIAN
    classes: int = 10
    shape: Sequence[int] = (1, SIDE, SIDE)
    class_names: Sequence[str] = ()  # for reading an evaluation

    def prepare(self) -> None:
        for split in self.splits:
            self._path(f"{FILES[split]}-images-idx3-ubyte")
            self._path(f"{FILES[split]}-labels-idx1-ubyte")

    def load(self, split: Split) -> Examples:
        count = COUNTS[split]
        images = self._read(f"{FILES[split]}-images-idx3-ubyte", count, SIDE, SIDE)
        labels = self._read(f"{FILES[split]}-labels-idx1-ubyte", count)
        examples = Examples(images[:, None], labels.astype(np.int64))
        return checked("Fashion-MNIST", self, examples).first(self.limit_of(split))

    def _path(self, name: str) -> Path:
        """The file, packed or not. Raises DataError."""
        folder = Path(self.root).expanduser()
        for path in (folder / f"{name}.gz", folder / name):
            if path.is_file():
                return path
        raise DataError(
            "dataset.root",
            self.root,
            "Fashion-MNIST is not there",
            f"looked for {name}.gz in {folder.absolute()}",
            "run apt-get "
            "install dataset-fashion-mnist, or set dataset.root to a folder with its four files",
        )

    def _read(self, name: str, *shape: int) -> npt.NDArray[np.uint8]:
        """The bytes of an IDX file, which begins with its number of axes and their lengths."""
        path = self._path(name)
        head = bytes([0, 0, 8, len(shape)]) + np.asarray(shape, ">u4").tobytes()
        try:
            data = read_bytes(path, MOST)
            if data.startswith(ZIPPED):
                data = zlib.decompressobj(wbits=31).decompress(data, MOST)
        except (OSError, zlib.error) as error:
            raise DataError(
                "dataset.root",
                self.root,
                f"{path} cannot be read ({error})",
                "an IDX file, packed by gzip or not, is expected",
                "install or fetch it again",
            ) from error
        if not data.startswith(head) or len(data) != len(head) + np.prod(shape):
            raise DataError(
                "dataset.root",
                self.root,
                f"{path} is not whole, or another set's",
                f"bytes of shape {list(shape)} in an IDX file are expected",
                "install or fetch it again",
            )
        return np.frombuffer(data, np.uint8, offset=len(head)).reshape(shape)
