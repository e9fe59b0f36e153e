"""Mixup, the augmentation of a training recipe for any dataset.

It is a pure function of (seed, epoch, example) and of the order of the epoch, so that the number of
processes, micro-batches or a restart cannot change what is trained on. Evaluations have none of it.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from ninefold.dataset.arrays import Rows
from ninefold.dataset.preparation import to_device
from ninefold.engine.batches import Preparation
from ninefold.errors import ConfigError
from ninefold.tree import Tree, parts_of

STREAM = 1  # of random numbers: independent of those of flip and crop

Floats = npt.NDArray[np.float64]


class Draw(NamedTuple):
    """What is drawn for a batch of n examples.

    plain: for the preparation within. share: that stays of each example, float32 [n].
    """

    plain: Any
    share: Tensor


@dataclass(frozen=True)
class Mixup:
    """A preparation with mixup after it.

    alpha: of mixup (Zhang et al., 2018, "mixup: Beyond empirical risk minimization").
    classes: how many there are: mixed targets are shares of classes, or of labels, float32
        [n, classes].

    An example at place i of the global batch of B is mixed with the one at (i + B/2) mod B, in a
    share drawn from Beta(alpha, alpha) for the example alone. As a process takes every k-th
    example, both are in the same process wherever B divides by 2k: so nothing is read twice, and
    every strategy mixes the same pairs. The order of an epoch is random, and so are its pairs.
    """

    plain: Preparation
    alpha: float
    classes: int | None = None

    def draws(
        self, seed: int, epoch: int, rows: Rows, shape: tuple[int, ...], device: torch.device
    ) -> Iterator[Draw]:
        plain = self.plain.draws(seed, epoch, rows, shape, device)
        shares = torch.from_numpy(beta(self.alpha, seed, epoch, rows).astype(np.float32))
        return map(Draw, plain, to_device(shares, device).unbind())

    def __call__(self, inputs: Tree, targets: Tree, draw: Draw) -> tuple[Tensor, Tensor]:
        """To inputs of the same shape and targets float32 [n, classes].

        Raises ConfigError for inputs or targets that cannot be mixed.
        """
        inputs, targets = self.plain(inputs, targets, draw.plain)
        shares = self._shares_of(targets)
        if shares is None:
            raise self._wrong(
                f"the targets are {described(targets)}",
                "classes [n], whose number is known, and labels [n, classes] can be mixed",
            )
        if not isinstance(inputs, Tensor) or not inputs.is_floating_point():
            raise self._wrong(f"the inputs are {described(inputs)}", "floats can be mixed")
        if len(inputs) != len(draw.share):  # a preparation of the user's own
            found = f"{len(draw.share)} examples are {len(inputs)} inputs"
            raise self._wrong(found, "one input of each example can be mixed")
        half = len(inputs) // 2
        weights = draw.share.view(-1, *[1] * (inputs.ndim - 1))
        # Rounded after each product, on every device and in every layout.
        mixed = (inputs * weights).add_(inputs.roll(half, 0) * (1 - weights))
        share = draw.share[:, None]
        return mixed, shares * share + shares.roll(half, 0) * (1 - share)

    def _shares_of(self, targets: Tree) -> Tensor | None:
        """Classes [n] or labels [n, classes] as float32 [n, classes]; None: they are neither."""
        if not isinstance(targets, Tensor):
            return None
        if targets.ndim == 2 and targets.shape[1] == self.classes:
            return targets.to(torch.float32)
        if targets.ndim != 1 or targets.is_floating_point() or self.classes is None:
            return None
        classes = torch.arange(self.classes, device=targets.device)
        return (targets[:, None] == classes).to(torch.float32)

    def _wrong(self, found: str, allowed: str) -> ConfigError:
        do = "leave augment.mixup out, or choose another dataset or task"
        return ConfigError("augment.mixup", self.alpha, found, allowed, do)


def described(values: Tree) -> str:
    """The dtype of a batch and the shape of one of it, such as `uint8 [3, 32, 32]`."""
    if not isinstance(values, Tensor):
        return parts_of(values)
    return f"{str(values.dtype).removeprefix('torch.')} {list(values.shape[1:])}"


def beta(alpha: float, seed: int, epoch: int, rows: Rows) -> Floats:
    """A draw from Beta(alpha, alpha) for each example.

    The numbers of an epoch are drawn one after another, one for each example by its number, so
    that it is the same for whoever asks.
    """
    random = np.random.default_rng(np.random.SeedSequence([seed, epoch], spawn_key=(STREAM,)))
    found: Floats = random.beta(alpha, alpha, int(rows.max(initial=-1)) + 1)[rows]
    return found
