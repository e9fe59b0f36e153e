"""Resizing of bytes as PyTorch does it on a CPU, in operations that every graph format has."""

from __future__ import annotations

import torch
from torch import Tensor, nn

MOST = 22  # bits of a weight at most, and less than 16 with its sign


class Resize(nn.Module):
    """uint8 [n, c, h, w] to float32 [n, c, size, size], whole numbers: bilinear, antialiased.

    First along the width, then along the height, each rounded to bytes. Weights are whole numbers,
    so float64 adds them exactly in any order.
    """

    across: Tensor
    down: Tensor

    def __init__(self, height: int, width: int, size: int) -> None:
        super().__init__()
        for name, side in (("across", width), ("down", height)):
            self.register_buffer(name, whole_weights(side, size))

    def forward(self, images: Tensor) -> Tensor:
        across = rounded(images.to(torch.float64) @ self.across.T)
        return rounded(self.down @ across).to(torch.float32)


def rounded(values: Tensor) -> Tensor:
    return (values + 0.5).floor().clamp(0, 255)


def whole_weights(before: int, after: int) -> Tensor:
    """What each of `after` pixels takes of `before`: float64 [after, before], of few bits each.

    Pillow's weights, rounded to multiples of a power of two, as PyTorch does.
    """
    scale = before / after
    reach = max(scale, 1.0)
    weights = torch.zeros(after, before, dtype=torch.float64)
    for row in range(after):
        center = scale * (row + 0.5)
        first = max(int(center - reach + 0.5), 0)
        last = min(int(center + reach + 0.5), before)
        places = torch.arange(first, last, dtype=torch.float64)
        values = (1 - ((places - center + 0.5) / reach).abs()).clamp(min=0)
        weights[row, first:last] = values / values.sum()
    largest, bits = weights.max().item(), 0
    while bits < MOST and int(0.5 + largest * 2 ** (bits + 1)) < 2**15:
        bits += 1
    steps = float(2**bits)
    return (weights * steps + 0.5).floor() / steps
