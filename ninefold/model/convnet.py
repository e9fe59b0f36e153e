"""A small convolutional network for images of 8x8 to 32x32 pixels."""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor, nn


class ConvNet(nn.Module):
    """Three 3x3 convolutions with group normalization, pooled, and a linear layer.

    Maps float [n, channels, height, width] to logits [n, classes]. Group normalization looks at
    one example at a time, so that splitting a batch over devices leaves the result as it is.
    """

    def __init__(self, channels: int, classes: int, width: int = 32) -> None:
        super().__init__()
        self.features = nn.Sequential(
            *_block(channels, width),
            nn.MaxPool2d(2),
            *_block(width, 2 * width),
            nn.MaxPool2d(2),
            *_block(2 * width, 4 * width),
            PoolToQuarters(),
        )
        self.classifier = nn.Linear(4 * 4 * width, classes)

    def forward(self, images: Tensor) -> Tensor:
        logits: Tensor = self.classifier(self.features(images).flatten(1))
        return logits


class PoolToQuarters(nn.Module):
    """Average pooling to 2x2. Of even sides without AdaptiveAvgPool2d, whose backward pass has no
    deterministic kernel on CUDA."""

    def forward(self, images: Tensor) -> Tensor:
        height, width = images.shape[2:]
        if height % 2 or width % 2:
            return F.adaptive_avg_pool2d(images, 2)
        return F.avg_pool2d(images, (height // 2, width // 2))


def _block(inputs: int, outputs: int) -> list[nn.Module]:
    return [
        nn.Conv2d(inputs, outputs, 3, padding=1, bias=False),
        nn.GroupNorm(8, outputs),
        nn.ReLU(),
    ]
