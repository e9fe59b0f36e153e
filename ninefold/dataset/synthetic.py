"""Random images of any shape and number of classes: input that costs nothing to get."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from ninefold.dataset import Dataset, Examples, Split


@dataclass(frozen=True)
class Synthetic(Dataset):
    """Bytes and labels drawn uniformly, the same in every run."""

    train_count: int = 4096
    test_count: int = 512
    classes: int = 10
    shape: Sequence[int] = (3, 32, 32)
    random_inputs: ClassVar[bool] = True

    def load(self, split: Split) -> Examples:
        count = self.train_count if split == "train" else self.test_count
        random = np.random.default_rng(0 if split == "train" else 1)
        images = random.integers(0, 256, (count, *self.shape), dtype=np.uint8)
        labels = random.integers(0, self.classes, count, dtype=np.int64)
        return Examples(images, labels).first(self.limit_of(split))
