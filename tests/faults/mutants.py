"""What the code would be without one of its safeguards: tests must see each.

MUTANT in the environment names one; it is applied wherever `tests.faults.inject` is imported,
which the forkserver does before it starts workers.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any

from torch import Tensor

from ninefold.engine.batches import Batches
from ninefold.engine.state import State


def drop_scaler() -> None:
    """The GradScaler is not saved."""
    whole = State.content

    def without(self: State, *arguments: Any) -> dict[str, Any]:
        return {**whole(self, *arguments), "scaler": {}}

    State.content = without  # type: ignore[method-assign]


def drop_position() -> None:
    """A resumed epoch begins with its first batch."""
    epoch = Batches.epoch

    def from_the_first(
        self: Batches, number: int, start: int, *rest: Any
    ) -> Iterator[tuple[Tensor, Tensor]]:
        whole = epoch(self, number, 0, *rest)
        for taken, batch in enumerate(whole):
            if taken == self.steps_per_epoch - start:
                return
            yield batch

    Batches.epoch = from_the_first  # type: ignore[assignment, method-assign]


def apply() -> None:
    if name := os.environ.get("MUTANT"):
        globals()[name]()
