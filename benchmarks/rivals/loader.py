"""The frameworks' DataLoader with its fastest settings: a dataset that returns whole batches.

Nothing is fetched or collated one by one, and no process is started: the images are in memory.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import numpy.typing as npt
from torch import Tensor
from torch.utils.data import BatchSampler, DataLoader, Dataset

from benchmarks.rivals import raw
from ninefold.dataset import Examples

Rows = npt.NDArray[np.int64]


class Batched(Dataset[tuple[Tensor, Tensor]]):
    """Examples fetched by the batch, with DataLoader's `__getitems__`."""

    def __init__(self, examples: Examples) -> None:
        self._examples = examples

    def __len__(self) -> int:
        return len(self._examples)

    def __getitems__(self, rows: Rows) -> tuple[Tensor, Tensor]:
        return raw.batch(self._examples, rows)


class Ready(BatchSampler):
    """A batch sampler over rows that were drawn before."""

    def __init__(self, batches: Rows) -> None:
        self.batch_size, self.drop_last = batches.shape[1], True
        self._batches = batches

    def __iter__(self) -> Iterator[Any]:
        return iter(self._batches)

    def __len__(self) -> int:
        return len(self._batches)


def loader(examples: Examples, batches: Rows) -> DataLoader[Any]:
    """`batches`: the rows of each, int64 [steps, batch]."""
    return DataLoader(Batched(examples), batch_sampler=Ready(batches), collate_fn=_as_it_is)


def _as_it_is(batch: Any) -> Any:
    return batch
