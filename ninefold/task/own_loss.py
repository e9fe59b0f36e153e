"""A loss function of the user's own, and nothing besides: the score is the loss."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from ninefold.engine.task import Scores
from ninefold.errors import ConfigError
from ninefold.score import LOSS, Score
from ninefold.task.loss import Loss, mean_over_examples, unreduced
from ninefold.tree import Tree, rows


class OwnLoss(nn.Module):
    """Whatever a network returns against whatever an item's target is, tuples and dicts too.

    For networks such as autoencoders (VAE), of which nothing but the loss is to be measured.
    """

    score = Score(LOSS, unit="", better="less")

    def __init__(self, loss: Loss | str | None = None) -> None:
        """loss: called with output and target, returns a number for each example, or several, of
        which the mean is taken. Raises ConfigError if there is none.
        """
        super().__init__()
        if loss is None or isinstance(loss, str):
            wrong = "task=own_loss minimizes a function that you name"
            allowed = "a section with a _target_ in it is allowed"
            do = "set task.loss={_target_: module.function}, with _partial_: true for a function"
            raise ConfigError("task.loss", "null" if loss is None else loss, wrong, allowed, do)
        self.criterion = unreduced(loss)

    def loss(self, output: Tree, target: Tree) -> Tensor:
        return mean_over_examples(self.criterion(output, target), rows(target))

    def measure(self, output: Tree, target: Tree) -> Tensor:
        """The summed loss, and the number of examples: float64 [2]."""
        count = rows(target)
        loss = self.loss(output, target).to(torch.float64)
        return torch.stack([loss * count, torch.full_like(loss, count)])

    def scores(self, sums: Tensor, names: Sequence[str]) -> Scores:
        total, count = sums.tolist()
        return Scores(total / count)
