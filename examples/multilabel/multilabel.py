"""Multi-label classification: of each label whether it holds, of an example or of each pixel."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ninefold.errors import ConfigError, DataError
from ninefold.task import Figure, Scores
from ninefold.task.counts import named, unlabeled
from ninefold.task.loss import Loss, mean_over_examples, unreduced


class MultiLabel(nn.Module):
    """Logits float [n, k] or [n, k, h, w] against labels 0 or 1 of the same shape.

    Labels of any dtype; a label is decided to hold where its logit is above 0, or its probability
    above 0.5 where the loss takes probabilities. One label (k = 1) may also be [n], and so may the
    output. Scored by the mean over the labels of F1 = 2 TP / (2 TP + FP + FN), which for masks is
    the Dice coefficient; besides by the accuracy, the share of all labels that are decided right.

    classes: the number of labels k.
    loss: called with logits and labels in the dtype of the logits, returns a number for each
        example or each label of it. None: binary cross entropy.
    label_smoothing: share of each label that becomes 0.5 in the training loss. Mixed labels, of
        mixup, are shares of what holds.
    threshold: outputs above it hold. None: 0, of logits; with torch.nn.BCELoss 0.5.
    """

    score = "mean F1"

    def __init__(
        self,
        classes: int,
        loss: Loss | str | None = None,
        label_smoothing: float = 0,
        threshold: float | None = None,
    ) -> None:
        super().__init__()
        self.classes = classes
        self.criterion = None if loss is None else unreduced(loss)
        self.label_smoothing = label_smoothing
        usual = 0.5 if isinstance(loss, nn.BCELoss) else 0.0
        self._above = usual if threshold is None else threshold

    def loss(self, output: Tensor, target: Tensor) -> Tensor:
        """The mean over each example's labels, then over the examples."""
        output, labels = self._alike(output, target)
        labels = labels.to(output.dtype)
        if self.training and self.label_smoothing:
            labels = labels + self.label_smoothing * (0.5 - labels)
        if self.criterion is None:  # all examples have as many labels
            return F.binary_cross_entropy_with_logits(output, labels)
        return mean_over_examples(self.criterion(output, labels), len(labels))

    def require_targets(self, targets: npt.NDArray[Any]) -> None:
        """Raise DataError unless all `targets` are 0 or 1."""
        bad = np.argwhere((targets != 0) & (targets != 1))
        if len(bad):
            first = bad[0].tolist()
            wrong = (
                f"{len(bad):,} values of the targets are no labels, the first "
                f"{targets[tuple(first)]} of example {first[0]}"
            )
            raise DataError("dataset", "targets", wrong, "0 and 1 are allowed", "correct them")

    def measure(self, output: Tensor, target: Tensor) -> Tensor:
        """Counts for each label: int64 [k, 5].

        True positives, false positives, false negatives, true negatives, and targets that are
        neither 0 nor 1.
        """
        output, target = self._alike(output, target)
        holds, said = target == 1, output > self._above
        no = target == 0
        cells = (said & holds, said & no, ~said & holds, ~said & no, ~holds & ~no)
        return torch.stack([cell[..., None].flatten(2).sum(dim=(0, 2)) for cell in cells], dim=1)

    def choices(self, output: Tensor) -> Tensor:
        """Of each label the threshold, against which its logit decides: [n, k, ..., 2]."""
        return torch.stack([torch.full_like(output, self._above), output], dim=-1)

    def scores(self, sums: Tensor, names: Sequence[str]) -> Scores:
        """Mean F1 over the labels that occur in truth or prediction; F1 of each label and of all.

        Raises DataError if a target is no label, or no label occurs.
        """
        hits, wrong, missed, nos, odd = sums.cpu().T.tolist()
        if any(odd):
            raise unlabeled(
                "labels 0 and 1 alone", f"{sum(odd):,} values of the targets are neither"
            )
        both = [2 * h + w + m for h, w, m in zip(hits, wrong, missed, strict=True)]
        each = [2 * hit / of if of else None for hit, of in zip(hits, both, strict=True)]
        known = [value for value in each if value is not None]
        if not known:
            raise unlabeled("a label that holds", "all of its labels are 0")
        return Scores(
            score=sum(known) / len(known),
            others=[
                Figure("F1 of all labels", 2 * sum(hits) / sum(both)),
                Figure(
                    "accuracy of all labels", sum(hits + nos) / sum(hits + wrong + missed + nos)
                ),
            ],
            each=named(names, each),
            each_name="F1",
            counted="examples with it",
        )

    def _alike(self, output: Tensor, target: Tensor) -> tuple[Tensor, Tensor]:
        """Output and labels of one shape; [n] of one label as [n, 1]. Raises ConfigError."""
        shapes = f"the model's output is {list(output.shape)}, the targets are {list(target.shape)}"
        if self.classes == 1:
            output, target = (
                each[:, None] if each.ndim == 1 else each for each in (output, target)
            )
        if output.shape != target.shape or output.ndim < 2 or output.shape[1] != self.classes:
            raise ConfigError(
                "task",
                "multilabel",
                shapes,
                f"logits and labels of one shape, [n, {self.classes}] or "
                f"[n, {self.classes}, height, width], are allowed",
                "set dataset.classes to the "
                "number of labels, or choose another model, dataset or task",
            )
        return output, target
