"""Signals multiplied by a factor from 1 - gain to 1 + gain, drawn for each example."""

from __future__ import annotations

import itertools
from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from ninefold.dataset.arrays import Rows
from ninefold.dataset.preparation import random_bits


@dataclass(frozen=True)
class Gains:
    """What turns a stored batch into the network's input."""

    gain: float

    def draws(
        self, seed: int, epoch: int, rows: Rows, shape: tuple[int, ...], device: torch.device
    ) -> Iterable[Tensor | None]:
        """For each batch of an epoch what to draw: factors [n]. rows: int64 [batches, n]."""
        if not self.gain:
            return itertools.repeat(None, len(rows))
        share = (random_bits(seed, epoch, rows) / 2.0**64).astype(np.float32)
        return torch.from_numpy(1 + self.gain * (2 * share - 1)).to(device).unbind()

    def __call__(
        self, inputs: Tensor, targets: Tensor, draw: Tensor | None
    ) -> tuple[Tensor, Tensor]:
        """The network's input and the task's targets; draw is None in evaluations."""
        if draw is not None:
            inputs = inputs * draw[:, None, None, None]
        return inputs, targets
