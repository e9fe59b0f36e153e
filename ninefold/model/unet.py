"""A U-Net for segmentation and landmark heatmaps, in two or three dimensions."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

GROUPS = 8  # of GroupNorm, or fewer where a layer has channels that 8 does not divide
CONVOLUTIONS = {2: nn.Conv2d, 3: nn.Conv3d}
BATCH_NORMS = {2: nn.BatchNorm2d, 3: nn.BatchNorm3d}
POOLS = {2: F.max_pool2d, 3: F.max_pool3d}


class UNet(nn.Module):
    """A U-Net (Ronneberger, Fischer and Brox, 2015) with padding and normalization.

    Maps float [n, channels, (depth,) height, width] to logits [n, classes, (depth,) height, width],
    for sides of any length of at least 2**depth. Upsampling repeats pixels and is followed by a
    convolution.

    width: channels of the first level; each of the `depth` levels below it has twice as many.
    dims: 2 for images, 3 for volumes.
    norm: `group` looks at one example at a time, so that splitting a batch over devices leaves the
        result as it is. `batch` learns faster (docs/how-to/tasks.md), but each device normalizes
        its own part of a batch.
    """

    def __init__(
        self,
        channels: int,
        classes: int,
        width: int = 32,
        depth: int = 4,
        dims: int = 2,
        norm: str = "group",
    ) -> None:
        super().__init__()
        if norm not in ("group", "batch"):
            raise ValueError(f"norm={norm}: group and batch are allowed")
        if dims not in CONVOLUTIONS:
            raise ValueError(f"dims={dims}: 2 for images and 3 for volumes are allowed")
        widths = [width * 2**level for level in range(depth + 1)]
        self.dims = dims
        self.down = nn.ModuleList(
            Block(before, after, dims, norm)
            for before, after in zip([channels, *widths], widths, strict=False)
        )
        self.up = nn.ModuleList(
            Block(below + here, here, dims, norm)
            for here, below in zip(widths[-2::-1], widths[:0:-1], strict=True)
        )
        self.head = CONVOLUTIONS[dims](width, classes, 1)

    def forward(self, images: Tensor) -> Tensor:
        levels = [self.down[0](images)]
        for block in list(self.down)[1:]:
            levels.append(block(POOLS[self.dims](levels[-1], 2)))
        features = levels.pop()
        for block in self.up:
            beside = levels.pop()
            features = F.interpolate(features, beside.shape[2:], mode="nearest")
            features = block(torch.cat([beside.to(features.device), features], dim=1))
        logits: Tensor = self.head(features)
        return logits


class Block(nn.Sequential):
    """Two convolutions of three pixels across, each with normalization and ReLU."""

    def __init__(self, inputs: int, outputs: int, dims: int, norm: str) -> None:
        layers: list[nn.Module] = []
        for channels in (inputs, outputs):
            layers += [
                CONVOLUTIONS[dims](channels, outputs, 3, padding=1, bias=False),
                BATCH_NORMS[dims](outputs)
                if norm == "batch"
                else nn.GroupNorm(min(GROUPS, outputs & -outputs), outputs),
                nn.ReLU(),
            ]
        super().__init__(*layers)
