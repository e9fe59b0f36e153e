"""The diabetes study that comes with scikit-learn: a table, and a number to predict."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache

import numpy as np
import numpy.typing as npt

from ninefold.dataset import Dataset, Examples, Split
from ninefold.dataset.digits import packaged

FILES = "diabetes_data_raw.csv.gz", "diabetes_target.csv.gz"
COLUMNS = 10  # age, sex, body mass index, blood pressure and six measurements of the serum


@dataclass(frozen=True)
class Diabetes(Dataset):
    """442 patients: float32 [10] each; target: progression of the disease, float32 [1].

    Inputs have mean 0 and deviation 1 over the training examples. Every fifth patient (89) is for
    testing. From B. Efron, T. Hastie, I. Johnstone and R. Tibshirani, Least Angle Regression,
    Annals of Statistics 32 (2004), 407-499.
    """

    target_mean: float = 152.0
    target_std: float = 77.0
    classes: int = 1
    shape: Sequence[int] = (COLUMNS,)

    def prepare(self) -> None:
        for name in FILES:
            packaged(name, "diabetes")

    def load(self, split: Split) -> Examples:
        inputs, targets = tables()
        test = np.arange(len(inputs)) % 5 == 0
        inputs = (inputs - inputs[~test].mean(axis=0)) / inputs[~test].std(axis=0)
        rows = test if split == "test" else ~test
        inputs = inputs[rows].astype(np.float32)
        examples = Examples(inputs, targets[rows].astype(np.float32))
        return examples.first(self.limit_of(split))


@cache
def tables() -> tuple[npt.NDArray[np.float64], npt.NDArray[np.float64]]:
    """The two files, read once: float64 [442, 10] and [442, 1]."""
    data, target = (packaged(name, "diabetes") for name in FILES)
    return np.loadtxt(data), np.loadtxt(target, ndmin=2).reshape(-1, 1)
