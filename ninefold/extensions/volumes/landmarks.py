"""3-D landmarks: a network's heatmaps against Gaussians around the points, drawn on the device."""

from __future__ import annotations

import functools
from collections.abc import Sequence

import torch
from torch import Tensor, nn

from ninefold.engine.task import Figure, Scores
from ninefold.errors import ConfigError
from ninefold.task.counts import named, unlabeled
from ninefold.task.loss import Loss, mean_over_examples, unreduced

TAIL = 1e-12  # of a Gaussian along one axis; smaller values are 0, as subnormal numbers are slow


class Landmarks(nn.Module):
    """Heatmaps float32 [n, k, d, h, w] and points float32 [n, k, 3] in voxels z, y, x.

    A landmark that is absent (NaN) counts nowhere. Scored by the share of the annotated landmarks
    that are found within `within` mm; further the mean error in mm, and that of each landmark.
    """

    def __init__(
        self,
        spacing: Sequence[float] | None,
        shape: Sequence[int] | None = None,
        sigma: float = 4.0,
        within: float = 4.0,
        loss: str | Loss | None = None,
    ) -> None:
        """spacing: mm between voxels along z, y, x. shape: channels, d, h, w of the volumes.

        sigma: standard deviation of the Gaussians in mm.
        loss: cross_entropy (also None): softmax over the voxels against the normalized Gaussian.
            mse: squared differences from Gaussians of peak 1, summed over voxels. Both are averaged
            over an example's landmarks, then over examples. Or a function of heatmaps
            [n, k, d, h, w] and Gaussians of the same shape (0 for an absent landmark), which
            returns [n], [n, k] or [n, k, d, h, w].
        Raises ConfigError for a name of no loss, or without spacing.
        """
        super().__init__()
        if spacing is None:
            raise ConfigError(
                "task",
                "landmarks",
                "the dataset has no spacing",
                "dataset=volumes, and datasets with dataset.spacing=[z, y, x] in mm, are allowed",
                "choose one of them, or another task",
            )
        self.score = f"within {within:g} mm"
        self.within = within
        self._spacing = tuple(spacing)
        self._sides = None if shape is None else torch.Size(shape[1:])
        self._sigma = [sigma / mm for mm in spacing]
        self._loss = unreduced("cross_entropy" if loss is None else loss, LOSSES)
        self._logits = self._loss is cross_entropy

    def loss(self, output: Tensor, target: Tensor) -> Tensor:
        """The mean over each example's landmarks, then over the examples; 0 for none."""
        self._require_fit(output, target)
        values = self._loss(output, heatmaps(target, output.shape[2:], self._sigma))
        if values.ndim < 2:
            return mean_over_examples(values, len(target))
        valid = present(target).reshape(*target.shape[:2], *[1] * (values.ndim - 2))
        valid = valid.expand_as(values)
        return mean_over_examples(values.where(valid, 0), len(target), valid)

    def measure(self, output: Tensor, target: Tensor) -> Tensor:
        """For each landmark how often it is annotated, found, and the sum of its errors in mm.

        float64 [k, 3]. Found is a landmark within `within` mm.
        """
        self._require_fit(output, target)
        valid = present(target)
        apart = (positions(output, self._logits) - target).to(torch.float64)
        errors = (apart * constant(self._spacing, torch.float64, apart.device)).norm(dim=-1)
        found = valid & (errors <= self.within)
        return torch.stack(
            [valid.sum(0).to(torch.float64), found.sum(0).to(torch.float64),
             errors.where(valid, 0).sum(0)], dim=1
        )  # fmt: skip

    def scores(self, sums: Tensor, names: Sequence[str]) -> Scores:
        """The share of annotated landmarks within `within` mm; mean errors in mm.

        Raises DataError if none is annotated.
        """
        annotated, found, errors = sums.cpu().numpy().T
        count = float(annotated.sum())
        if not count:
            raise unlabeled("a landmark", "all of its points are NaN")
        return Scores(
            score=float(found.sum()) / count,
            others=[Figure("mean error", float(errors.sum()) / count, "mm", "less")],
            each=named(names, [e / n if n else None for e, n in sums[:, [2, 0]].tolist()]),
            each_name="mean error mm",
            counted="landmarks",
        )

    def _require_fit(self, output: Tensor, target: Tensor) -> None:
        """Raise ConfigError unless there is a heatmap of the volume for each landmark."""
        wanted = [*target.shape[:2], *(self._sides or output.shape[2:])]
        if target.ndim != 3 or output.ndim != 5 or list(output.shape) != wanted:
            raise ConfigError(
                "task",
                "landmarks",
                f"the model's output is {list(output.shape)}, the targets are {list(target.shape)}",
                "heatmaps [n, landmarks, depth, height, width] of the size "
                f"of the volumes {list(self._sides or [])} and points [n, landmarks, 3] are "
                "allowed",
                "choose model=unet3d and dataset=volumes, or another task",
            )


def present(points: Tensor) -> Tensor:
    """Which of the points [..., 3] are annotated: bool [...]."""
    return ~points.isnan().any(dim=-1)


def heatmaps(points: Tensor, shape: Sequence[int], sigma: Sequence[float]) -> Tensor:
    """Gaussian heatmaps of peak 1 around points, on their device: float32 [n, k, d, h, w].

    The outer product of three vectors, in one pass over the result. A point lies between voxels
    where its coordinates are fractions; the heatmap of NaN is 0.

    points: float [n, k, 3], in voxels z, y, x. shape: d, h, w.
    sigma: in voxels, for each axis.
    """
    z, y, x = (gaussian(points[..., axis], side, sigma[axis]) for axis, side in enumerate(shape))
    plane = z[..., :, None] * y[..., None, :]
    return plane[..., None] * x[..., None, None, :]


def gaussian(centers: Tensor, side: int, sigma: float) -> Tensor:
    """A Gaussian of peak 1 along one axis for each of `centers` [...]: float32 [..., side]."""
    voxels = torch.arange(side, device=centers.device, dtype=torch.float32)
    values = torch.exp(-0.5 * ((voxels - centers[..., None].to(torch.float32)) / sigma) ** 2)
    return values.where(values > TAIL, 0)


def cross_entropy(output: Tensor, maps: Tensor) -> Tensor:
    """Of the softmax over the voxels [n, k, d, h, w] and the normalized Gaussians: [n, k]."""
    logits, weights = output.flatten(2), maps.flatten(2)
    hit = (logits * weights).sum(dim=2) / weights.sum(dim=2).clamp(min=TAIL)
    return logits.logsumexp(dim=2) - hit


def squared(output: Tensor, maps: Tensor) -> Tensor:
    """The squared differences summed over the voxels: [n, k]."""
    return (output - maps).square().flatten(2).sum(dim=2)


LOSSES: dict[str, Loss] = {"cross_entropy": cross_entropy, "mse": squared}


def positions(output: Tensor, logits: bool) -> Tensor:
    """The mean position of the 5x5x5 voxels around each heatmap's maximum: float32 [n, k, 3].

    In voxels z, y, x. Weighted by the heatmap: by exp of it for logits, else by what is above 0.
    """
    flat, height, width = output.flatten(2), *output.shape[3:]
    peak = flat.argmax(dim=2)
    middle = torch.stack([peak // (height * width), peak // width % height, peak % width], dim=-1)
    last = constant(tuple(side - 1 for side in output.shape[2:]), torch.int64, output.device)
    steps = torch.arange(-2, 3, device=output.device)
    around = torch.cartesian_prod(steps, steps, steps)  # [125, 3]
    # As far on both sides: at the edge of the volume the mean would be moved inward otherwise.
    reach = torch.minimum(middle, last - middle)[:, :, None]
    z, y, x = torch.minimum((middle[:, :, None] + around).clamp(min=0), last).unbind(dim=-1)
    values = flat.gather(2, (z * height + y) * width + x)
    values = (values - flat.amax(dim=2, keepdim=True)).exp() if logits else values.clamp(min=0)
    # The maximum itself always counts a little: all others may be 0.
    least = torch.finfo(values.dtype).tiny * (around == 0).all(dim=-1)
    weights = (values * (around.abs() <= reach).all(dim=-1) + least)[..., None]
    return middle + (weights * around).sum(dim=2) / weights.sum(dim=2)


@functools.cache
def constant(values: tuple[float, ...], dtype: torch.dtype, device: torch.device) -> Tensor:
    """`values` as a tensor, on the device once: each copy would make the host wait."""
    return torch.tensor(values, dtype=dtype, device=device)
