"""The most memory that training has allocated on GPUs."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import torch


class PeakMemory:
    """The most bytes that training has allocated on each of `gpus`; evaluations are left out.

    Their batches may be larger than those of training, see `dataset.batches.evaluation_batch`.
    """

    def __init__(self, gpus: Sequence[int]) -> None:
        self._most = dict.fromkeys(gpus, 0)

    def start(self) -> None:
        """Forget what was measured before."""
        for index in self._most:
            self._most[index] = 0
            torch.cuda.reset_peak_memory_stats(index)

    def bytes(self) -> list[int]:
        """The peaks so far."""
        return [max(most, torch.cuda.max_memory_allocated(i)) for i, most in self._most.items()]

    @contextmanager
    def paused(self) -> Iterator[None]:
        """In the block nothing is measured."""
        self._most = dict(zip(self._most, self.bytes(), strict=True))
        try:
            yield
        finally:
            for index in self._most:
                torch.cuda.reset_peak_memory_stats(index)
