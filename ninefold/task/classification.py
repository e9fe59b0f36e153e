"""Classification of an example into one of several classes."""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor


@dataclass(frozen=True)
class Classification:
    """Cross entropy; its measure is the confusion matrix."""

    classes: int

    def loss(self, output: Tensor, target: Tensor) -> Tensor:
        return F.cross_entropy(output, target)

    def measure(self, output: Tensor, target: Tensor) -> Tensor:
        """int64 [classes, classes + 1]: row = true class, column = predicted class.

        The last column counts predictions outside the dataset's classes, which a network with
        more outputs than the dataset has classes can make.
        """
        predicted = output.argmax(dim=1).clamp(max=self.classes)
        cells = target * (self.classes + 1) + predicted
        counts = torch.bincount(cells, minlength=self.classes * (self.classes + 1))
        return counts.reshape(self.classes, self.classes + 1)
