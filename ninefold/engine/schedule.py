"""Learning rates: a linear warm-up by optimizer steps, then a scheduler of torch's."""

from __future__ import annotations

import math
import warnings
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from torch.optim.lr_scheduler import LRScheduler, ReduceLROnPlateau

from ninefold.errors import ConfigError, one_line
from ninefold.tree import named

# What the state of a scheduler may have: a number of NumPy's becomes Python's in a checkpoint.
KEPT = (
    *(bool, int, float, complex, str, bytes, set, type(None), np.generic),
    *(torch.Tensor, torch.Size, torch.dtype, torch.device),
)


def require_counts(counts: Iterable[tuple[str, Any]], least: int = 0) -> None:
    """Raise ValueError for one that no run counts to: a checkpoint may be anybody's."""
    for key, value in counts:
        if type(value) is not int or not least <= value < 2**53:
            raise ValueError(f"{key}: a count is expected, it is {one_line(repr(value))}")


class Schedule:
    """Learning rates of `scheduler`, with a linear warm-up.

    It is stepped after each epoch, ReduceLROnPlateau by its loss, or `per_step`: by each optimizer
    step after the warm-up, and not after an epoch. Optimizer step n (from 1) of the `warmup` steps
    has n / warmup of the learning rate that the scheduler has set.
    """

    def __init__(
        self,
        scheduler: LRScheduler,
        optimizer: torch.optim.Optimizer,
        per: str = "epoch",
        warmup: int = 0,
    ) -> None:
        """per: epoch or step. Raises ConfigError if the scheduler cannot be stepped so, or has a
        state that torch.load would not read.
        """
        for name, leaf in named(scheduler.state_dict(), "state"):
            if not isinstance(leaf, KEPT):
                wrong = f"its state has a {type(leaf).__name__}, {name}"
                do = "keep it in another form, or leave it out of state_dict"
                allowed = "checkpoints hold tensors, numbers and text"
                raise ConfigError("scheduler", type(scheduler).__name__, wrong, allowed, do)
        if per == "step" and isinstance(scheduler, ReduceLROnPlateau):
            wrong = "ReduceLROnPlateau takes an epoch's mean loss"
            do = "set scheduler.per=epoch or choose another scheduler"
            raise ConfigError("scheduler.per", per, wrong, "epoch is allowed with it", do)
        self._scheduler, self._optimizer = scheduler, optimizer
        self._warmup, self._per_step = warmup, per == "step"
        self._stands = False
        self._begun = 0  # optimizer steps
        self._rates = self._current()  # as the scheduler set them, without the warm-up
        # A first step that a GradScaler skips is no reason to warn that the order is wrong.
        warnings.filterwarnings("ignore", message="Detected call of `lr_scheduler.step")

    @contextmanager
    def standing(self) -> Iterator[None]:
        """A context in which steps do not advance the schedule, which may end after so many."""
        self._stands = True
        try:
            yield
        finally:
            self._stands = False

    def begin_step(self) -> None:
        """Set the learning rates of the optimizer step that begins."""
        if self._stands:
            return
        if self._begun < self._warmup:
            self._apply((self._begun + 1) / self._warmup)
        elif self._per_step and self._begun > self._warmup:
            self._scheduler.step()
        self._begun += 1

    def end_epoch(self, loss: float) -> None:
        """Set the learning rates of the next epoch. loss: mean training loss of the last one."""
        if self._per_step:
            return
        warms_up = self._begun < self._warmup
        if warms_up:
            self._apply(1)
        if isinstance(self._scheduler, ReduceLROnPlateau):
            self._scheduler.step(loss)
        else:
            self._scheduler.step()
        self._rates = self._current()
        if warms_up:
            self._apply(self._begun / self._warmup)

    def state_dict(self) -> dict[str, Any]:
        """The scheduler's state_dict, with `begun` and `rates` where they matter."""
        own = {"begun": self._begun, "rates": [*self._rates]} if self._has_own else {}
        return {**self._scheduler.state_dict(), **own}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue from `state`. Raises ValueError for a count or a rate that none can be."""
        inner = dict(state)
        if self._has_own:
            begun, rates = inner.pop("begun"), [*inner.pop("rates")]
            require_counts([("begun", begun)])
            if len(rates) != len(self._rates) or not all(0 <= float(n) < math.inf for n in rates):
                text = f"one of at least 0 for each group is expected, not {rates}"
                raise ValueError(f"rates: {text}")
            self._begun, self._rates = begun, rates
        counts = [pair for pair in named(inner, "") if pair[0] == "last_epoch"]
        require_counts(counts, least=-1)  # of one in a SequentialLR that has not begun
        self._scheduler.load_state_dict(inner)

    @property
    def _has_own(self) -> bool:
        """Whether its steps and rates say more than the scheduler does."""
        return self._warmup > 0 or self._per_step

    def _current(self) -> list[Any]:
        return [group["lr"] for group in self._optimizer.param_groups]

    def _apply(self, factor: float) -> None:
        for group, rate in zip(self._optimizer.param_groups, self._rates, strict=True):
            group["lr"] = rate * factor
