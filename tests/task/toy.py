"""What a user adds from outside the package: a segmentation data set, task and preparation."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from ninefold.dataset import Examples, Rows, Split
from ninefold.dataset.preparation import random_bits
from ninefold.task import Scores

IGNORED = 255


@dataclass(frozen=True)
class Segmentation:
    """Masks uint8 [n, h, w], logits [n, 2, h, w]; pixels of 255 do not count."""

    score = "mean IoU"

    def loss(self, output: Tensor, target: Tensor) -> Tensor:
        losses = F.cross_entropy(output, target.long(), ignore_index=IGNORED, reduction="none")
        return (losses.sum((1, 2)) / (target != IGNORED).sum((1, 2)).clamp(min=1)).mean()

    def measure(self, output: Tensor, target: Tensor) -> Tensor:
        valid = target != IGNORED
        cells = 2 * target[valid].long() + output.argmax(dim=1)[valid]
        return torch.bincount(cells, minlength=4).reshape(2, 2)

    def scores(self, sums: Tensor, names: Sequence[str]) -> Scores:
        hits = sums.diagonal()
        each = hits / (sums.sum(dim=0) + sums.sum(dim=1) - hits).clamp(min=1)
        return Scores(each.mean().item(), {"pixels": (hits.sum() / sums.sum()).item()})


@dataclass(frozen=True)
class Mirrored:
    """Mirrors an image and its mask, or neither."""

    augment: bool

    def draws(
        self, seed: int, epoch: int, rows: Rows, shape: tuple[int, ...], device: torch.device
    ) -> Iterable[Any]:
        bits = random_bits(seed, epoch, rows) & np.uint64(self.augment)
        return torch.from_numpy(bits.astype(bool)).to(device).unbind()

    def __call__(self, inputs: Tensor, targets: Tensor, draw: Any) -> tuple[Tensor, Tensor]:
        if draw is not None:
            inputs = torch.where(draw[:, None, None, None], inputs.flip(3), inputs)
            targets = torch.where(draw[:, None, None], targets.flip(2), targets)
        return inputs / 255, targets


@dataclass(frozen=True)
class Halves:
    """Bright places to be found in noise, most of them on the left; some pixels do not count."""

    limit: int | None = None
    classes: int = 2
    shape: Sequence[int] = (1, 8, 8)
    mean: Sequence[float] | None = None
    std: Sequence[float] | None = None
    flip: bool = True
    crop: int = 0
    root: None = None
    val: float = 0

    def prepare(self) -> None:
        return None

    def load(self, split: Split) -> Examples:
        count = 48 if split == "train" else 13
        random = np.random.default_rng(count)
        images = random.integers(0, 256, (count, *self.shape), dtype=np.uint8)
        masks = (images[:, 0] > 160).astype(np.uint8)
        for row, mask in enumerate(masks):
            mask[: row % 8] = IGNORED  # unlike numbers of valid pixels
        return Examples(images, masks).first(self.limit if split == "train" else None)

    def preparation(self, flip: bool, **options: Any) -> Mirrored:
        return Mirrored(flip)
