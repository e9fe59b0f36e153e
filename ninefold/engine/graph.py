"""What computes the steps of a training."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import ClassVar

from torch import Tensor

from ninefold.tree import Tree

Update = Callable[[Tree, Tree], Tensor]  # (inputs, targets) -> the loss of a step, detached


class NoGraph:
    """Computes each step as it is written."""

    records: ClassVar[bool] = False

    def computing(self, update: Update) -> Update:
        """What computes the steps: a function with the effect of `update`.

        update: computes a step on the device and never waits for it. What it does on the host may
        be done once for many steps.
        """
        return update

    @contextmanager
    def off(self) -> Iterator[None]:
        """A context whose steps are computed as they are written."""
        yield
