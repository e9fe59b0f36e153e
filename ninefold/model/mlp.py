"""A multilayer perceptron, for tables and other vectors."""

from __future__ import annotations

import math
from collections.abc import Sequence

from torch import Tensor, nn


class MLP(nn.Module):
    """Maps float [n, ...] to float [n, outputs], by `depth` hidden layers of `width` with ReLU.

    shape: of an input, which is flattened. Outputs are multiplied by `scale` and shifted by
    `shift`, in float32, so that a network that is trained on numbers far from 0 and 1 begins near
    them and predicts in their unit.
    """

    def __init__(
        self,
        shape: Sequence[int],
        outputs: int,
        width: int = 64,
        depth: int = 2,
        dropout: float = 0.0,
        scale: float = 1.0,
        shift: float = 0.0,
    ) -> None:
        super().__init__()
        inputs, layers = math.prod(shape), list[nn.Module]()
        for number in range(depth):
            layers += [nn.Linear(width if number else inputs, width), nn.ReLU()]
            layers += [nn.Dropout(dropout)] if dropout else []
        self.hidden = nn.Sequential(*layers)
        self.last = nn.Linear(width if depth else inputs, outputs)
        self.scale, self.shift = scale, shift

    def forward(self, inputs: Tensor) -> Tensor:
        outputs: Tensor = self.last(self.hidden(inputs.flatten(1)))
        if (self.scale, self.shift) == (1.0, 0.0):
            return outputs
        return outputs.float() * self.scale + self.shift
