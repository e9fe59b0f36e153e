"""Semantic segmentation: a class for each pixel of an image or voxel of a volume."""

from __future__ import annotations

import copy
from collections.abc import Sequence

import numpy as np
import torch.nn.functional as F
from torch import Tensor, nn

from ninefold.engine.task import Figure, Scores
from ninefold.errors import ConfigError
from ninefold.task.counts import counted, named, unlabeled
from ninefold.task.loss import Loss, mean_over_examples, unreduced

UNUSED = -100  # torch's own ignore_index where nothing is to be ignored
MODES = {2: "bilinear", 3: "trilinear"}


class Segmentation(nn.Module):
    """Logits float32 [n, classes, h, w] and masks [n, H, W] of class numbers; scored by mean IoU.

    Logits of another size are resized to the mask, bilinear. Pixels of the number `ignore` (void)
    count nowhere. Volumes have one dimension more.
    """

    score = "mean IoU"

    def __init__(self, classes: int, ignore: int | None = None, loss: Loss | None = None) -> None:
        """loss: of logits [n, classes, H, W] and masks int64 [n, H, W], to [n] or [n, H, W].

        It finds void pixels as `ignore` in the mask; what it returns for them does not count. A
        loss of torch with an `ignore_index` is given ours. None: cross entropy.
        """
        super().__init__()
        self.classes = classes
        self.ignore = UNUSED if ignore is None else ignore
        self._own = unreduced(nn.CrossEntropyLoss() if loss is None else loss)
        if getattr(self._own, "ignore_index", None) == UNUSED:
            self._own = copy.copy(self._own)
            self._own.ignore_index = self.ignore  # type: ignore[attr-defined]

    def loss(self, output: Tensor, target: Tensor) -> Tensor:
        """The mean over each example's valid pixels, then over the examples; 0 for void alone."""
        logits, classes = self._resized(output, target), target.long()
        values = self._own(logits, classes)
        if values.ndim < target.ndim:
            return mean_over_examples(values, len(target))
        valid = classes != self.ignore
        if values.ndim > target.ndim:  # a value for each class
            valid = valid.unsqueeze(1).expand_as(values)
        return mean_over_examples(values.where(valid, 0), len(target), valid)

    def measure(self, output: Tensor, target: Tensor) -> Tensor:
        """The confusion matrix of the valid pixels, int64 [classes, classes + 1].

        Row = true, column = predicted class. The last column counts predictions outside the
        dataset's classes.
        """
        predicted = self._resized(output, target).argmax(dim=1)
        columns = self.classes + 1
        # Void goes to a row of its own: to take it out of the tensors would cost more.
        classes = target.long()  # in a smaller dtype a class may be equal to void
        true = classes.masked_fill(classes == self.ignore, self.classes)
        cells = true.mul_(columns).add_(predicted.clamp_(max=self.classes))
        counts = counted(cells, columns * columns)
        return counts.reshape(columns, columns)[: self.classes]

    def scores(self, sums: Tensor, names: Sequence[str]) -> Scores:
        """Mean IoU over the classes that occur in truth or prediction; IoU of each class.

        All of it from the counts of a whole set, never a mean over images. Raises DataError if
        every pixel of it is void.
        """
        counts = sums.cpu().numpy()
        hits = counts.diagonal()
        both = counts.sum(axis=1) + counts[:, : self.classes].sum(axis=0)
        pixels = int(counts.sum())
        if not pixels:
            raise unlabeled("a class in any pixel", f"all are {self.ignore}, which is ignored")
        occurs = (both > 0) & (np.arange(self.classes) != self.ignore)  # void is in no truth
        iou, dice = hits[occurs] / (both - hits)[occurs], 2 * hits[occurs] / both[occurs]
        found = iter(iou.tolist())
        return Scores(
            score=float(iou.mean()),
            others=[
                Figure("pixel accuracy", int(hits.sum()) / pixels),
                Figure("mean Dice", float(dice.mean())),
            ],
            each=named(names, [next(found) if there else None for there in occurs]),
            each_name="IoU",
            table=counts,
            counted="pixels",
        )

    def _resized(self, output: Tensor, target: Tensor) -> Tensor:
        """The logits in the size of the masks."""
        sides = target.shape[1:]
        if output.ndim != target.ndim + 1 or len(sides) not in MODES:
            raise ConfigError(
                "task",
                "segmentation",
                f"the model's output is {list(output.shape)}, the targets are {list(target.shape)}",
                "[n, classes, height, width] and masks [n, height, width] are allowed",
                "choose a model such as unet and a dataset with masks, or another task",
            )
        if output.shape[2:] == sides:
            return output
        return F.interpolate(output, sides, mode=MODES[len(sides)], align_corners=False)
