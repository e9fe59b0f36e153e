"""Regression: one number or several of each example, scored in the unit of the targets."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import partial
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ninefold.engine.task import Scores
from ninefold.errors import ConfigError, DataError
from ninefold.numbers import plural
from ninefold.score import Figure, Score
from ninefold.task.counts import named
from ninefold.task.loss import Loss, mean_over_examples, unreduced

LOSSES: dict[str, Loss] = {
    "mse": partial(F.mse_loss, reduction="none"),
    "l1": partial(F.l1_loss, reduction="none"),
    "huber": partial(F.huber_loss, reduction="none"),
}


class Regression(nn.Module):
    """Numbers [n], [n, k] or [n, k, ...] against targets of the same shape.

    An output [n, 1] fits targets [n], and the other way round. Scored by the root of the mean
    squared error (RMSE) or the mean absolute error (MAE), in the unit of the targets, less is
    better, or by the coefficient of determination (R2): 1 is perfect, 0 is what the mean of the
    targets gives, and it may be negative. Several outputs have errors over all of them, and the
    mean of their R2.
    """

    def __init__(
        self,
        metric: Literal["rmse", "mae", "r2"] = "rmse",
        unit: str | None = None,
        margin: float | None = None,
        loss: Loss | str | None = None,
    ) -> None:
        """loss: mse (also None), l1, huber, or a function of output and target that returns a
        number for each example or each number of it.

        Raises ConfigError for a name of no loss.
        """
        super().__init__()
        self.metric, self._unit = metric, unit or ""
        if metric == "r2":
            self.score = Score("R2", "", "more", margin or 0.01)  # of the targets' variance
        else:
            self.score = Score(metric.upper(), self._unit, "less", margin)
        self._own = unreduced("mse" if loss is None else loss, LOSSES)

    def loss(self, output: Tensor, target: Tensor) -> Tensor:
        """The mean over each example's numbers, then over the examples."""
        output, target = self._alike(output, target)
        return mean_over_examples(self._own(output, target), len(target))

    def require_targets(self, targets: npt.NDArray[Any]) -> None:
        """Raise DataError unless all `targets` are finite numbers."""
        if targets.dtype.kind not in "iuf":
            return  # `loss` says what is wrong
        bad = np.argwhere(~np.isfinite(targets))
        if len(bad):
            are, first = plural(len(bad), "is", "are"), bad[0][0]
            raise not_finite(
                f"{len(bad):,} of {targets.size:,} values {are} NaN or infinite, the first of "
                f"example {first}"
            )

    def measure(self, output: Tensor, target: Tensor) -> Tensor:
        """Sums over the examples for each of k outputs: float64 [k, 5].

        Of 1, of the squared and the absolute error, of the target and of its square.
        """
        output, target = (
            each.to(torch.float64).reshape(len(each), each.shape[1] if each.ndim > 1 else 1, -1)
            for each in self._alike(output, target)
        )
        error = output - target
        sums = (torch.ones_like(error), error.square(), error.abs(), target, target.square())
        return torch.stack([each.sum(dim=(0, 2)) for each in sums], dim=1)

    def scores(self, sums: Tensor, names: Sequence[str]) -> Scores:
        """RMSE, MAE and R2 over a whole set; the RMSE of each of several outputs.

        Raises DataError where a target is not finite, or all are the same and R2 is asked for.
        """
        count, squared, absolute, total, square = sums.cpu().T
        if not bool(total.isfinite().all()):
            raise not_finite("a target of the set is NaN or infinite")
        spread = square - total**2 / count
        varies = spread > 1e-12 * square
        r2 = (1 - squared / spread)[varies].mean().item() if bool(varies.any()) else None
        rmse = math.sqrt(squared.sum().item() / count.sum().item())
        mae = absolute.sum().item() / count.sum().item()
        figures = {
            "rmse": Figure("RMSE", rmse, self._unit, "less"),
            "mae": Figure("MAE", mae, self._unit, "less"),
            "r2": Figure("R2", r2, "", "more"),
        }
        score = figures.pop(self.metric).value
        if score is None:
            wrong = "all targets of the set are the same, so that there is no R2"
            allowed = "targets that differ are allowed with task.metric=r2"
            raise DataError("dataset", "test", wrong, allowed, "set task.metric=rmse")
        roots = (squared / count).sqrt().tolist()
        return Scores(
            score=score,
            others=[*figures.values()],
            each=named(names, roots) if len(roots) > 1 else {},
            each_name="RMSE",
        )

    def _alike(self, output: Tensor, target: Tensor) -> tuple[Tensor, Tensor]:
        """Both of one shape, the target float32. Raises ConfigError unless they are."""
        if output.ndim == target.ndim + 1 and output.shape[-1] == 1:
            output = output.squeeze(-1)
        elif target.ndim == output.ndim + 1 and target.shape[-1] == 1:
            target = target.squeeze(-1)
        if output.shape != target.shape or target.is_complex() or target.dtype == torch.bool:
            kind = str(target.dtype).removeprefix("torch.")
            raise ConfigError(
                "task",
                "regression",
                f"the model's output is {list(output.shape)}, the targets are {kind} "
                f"{list(target.shape)}",
                "numbers of one shape are allowed",
                "choose a model with as "
                "many outputs (model=mlp with model.net.outputs), or another task or dataset",
            )
        return output, target.to(output.dtype)


def not_finite(wrong: str) -> DataError:
    """The failure of a set with targets that are no numbers."""
    do = "leave out such examples, or fill in their targets"
    return DataError("dataset", "targets", wrong, "finite numbers are allowed", do)
