"""The 8x8 handwritten digits that come with scikit-learn: data with nothing to download."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from importlib.util import find_spec
from pathlib import Path

import numpy as np

from ninefold.dataset import Dataset, Examples, Split, checked
from ninefold.errors import DataError


@dataclass(frozen=True)
class Digits(Dataset):
    """1,797 images, values 0 to 16 scaled to bytes; every fifth one (360) is for testing."""

    classes: int = 10
    shape: Sequence[int] = (1, 8, 8)

    def prepare(self) -> None:
        packaged("digits.csv.gz", "digits")

    def load(self, split: Split) -> Examples:
        values = table()
        images = np.round(values[:, :-1] * (255 / 16)).astype(np.uint8).reshape(-1, 1, 8, 8)
        labels = values[:, -1].astype(np.int64)
        rows = np.arange(len(labels)) % 5 == 0
        rows = rows if split == "test" else ~rows
        examples = checked("digits", self, Examples(images[rows], labels[rows]))
        return examples.first(self.limit_of(split))


@cache
def table() -> np.ndarray:
    """The file of digits, read once: float32 [1797, 65], of each image 64 values and its label."""
    return np.loadtxt(packaged("digits.csv.gz", "digits"), delimiter=",", dtype=np.float32)


def packaged(name: str, option: str) -> Path:
    """A data file that comes with scikit-learn. option: the dataset's. Raises DataError."""
    # Importing sklearn.datasets takes 0.7 s in every process of every cell; its file 0.02 s.
    package = find_spec("sklearn")
    folders = (package.submodule_search_locations if package else None) or []
    for folder in folders:
        path = Path(folder) / "datasets" / "data" / name
        if path.is_file():
            return path
    allowed = f"looked in {', '.join(folders) or 'no installation of scikit-learn'}"
    do = "run pip install --force-reinstall scikit-learn"
    raise DataError("dataset", option, f"the file {name} of scikit-learn is not there", allowed, do)
