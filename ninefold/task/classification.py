"""Classification of an example into one of several classes."""

from __future__ import annotations

from collections.abc import Sequence

import torch.nn.functional as F
from torch import Tensor, nn

from ninefold.engine.task import Scores
from ninefold.errors import ConfigError
from ninefold.task.counts import counted, named
from ninefold.task.loss import Loss, mean_over_examples, unreduced
from ninefold.tree import rows


class Classification(nn.Module):
    """Logits float32 [n, outputs] against classes int64 [n]; scored by accuracy.

    classes: their number in the dataset.
    label_smoothing: share of each target that is spread over all classes in the training loss
        (Szegedy et al., 2016, "Rethinking the Inception architecture"); evaluations have none.
    loss: called with logits and classes, returns a number for each example, whose mean is
        minimized; a `reduction` is set to none. None: cross entropy.
    """

    score = "accuracy"

    def __init__(
        self, classes: int, loss: Loss | str | None = None, label_smoothing: float = 0
    ) -> None:
        super().__init__()
        self.classes = classes
        self.label_smoothing = label_smoothing
        self.criterion = None if loss is None else unreduced(loss)

    def loss(self, output: Tensor, target: Tensor) -> Tensor:
        """The mean over the examples. target: classes, or shares of them float32 [n, classes]."""
        if target.is_floating_point():  # the network may have more outputs than there are classes
            if target.ndim == 1:
                raise no_classes(target)
            target = F.pad(target, (0, output.shape[1] - target.shape[1]))
        if self.criterion is None:
            smoothing = self.label_smoothing if self.training else 0.0
            return F.cross_entropy(output, target, label_smoothing=smoothing)
        return mean_over_examples(self.criterion(output, target), rows(target))

    def measure(self, output: Tensor, target: Tensor) -> Tensor:
        """The confusion matrix, int64 [classes, classes + 1]: row = true, column = predicted class.

        The last column counts predictions outside the dataset's classes, which a network with
        more outputs than the dataset has classes can make.
        """
        if target.ndim != 1 or target.is_floating_point():
            raise no_classes(target)
        predicted = output.argmax(dim=1).clamp(max=self.classes)
        cells = target.long() * (self.classes + 1) + predicted  # a smaller dtype would overflow
        counts = counted(cells, self.classes * (self.classes + 1))
        return counts.reshape(self.classes, self.classes + 1)

    def scores(self, sums: Tensor, names: Sequence[str]) -> Scores:
        """Accuracy of integer counts, over all examples and for each class."""
        right, of = sums.diagonal().tolist(), sums.sum(dim=1).tolist()
        shares = [r / n if n else None for r, n in zip(right, of, strict=True)]
        return Scores(
            score=sum(right) / sum(of),
            each=named(names, shares),
            table=sums.cpu().numpy(),
        )


def no_classes(target: Tensor) -> ConfigError:
    """The failure for targets that are no class numbers."""
    wrong = f"the targets are {str(target.dtype).removeprefix('torch.')} {list(target.shape[1:])}"
    allowed = "a class number for each example is allowed"
    do = "choose another task, or return class numbers"
    return ConfigError("task", "classification", wrong, allowed, do)
