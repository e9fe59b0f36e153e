"""What a model is trained for: a loss to minimize and a measure to count."""

from __future__ import annotations

from typing import Protocol

from torch import Tensor


class Task(Protocol):
    """A loss and an integer measure, both of plain tensors."""

    def loss(self, output: Tensor, target: Tensor) -> Tensor:
        """The mean loss over the examples, a float32 scalar."""

    def measure(self, output: Tensor, target: Tensor) -> Tensor:
        """int64 counts that add up over batches and processes."""
