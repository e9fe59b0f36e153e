"""Networks and losses of users, of anything but single images with classes."""

import torch
import torch.nn.functional as F
from torch import Tensor, nn


class Pair(nn.Module):
    """Of two inputs, with two outputs by name."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(6, 4), nn.Linear(6, 4)
        self.head = nn.Linear(4, 2)

    def forward(self, one: Tensor, other: Tensor) -> dict[str, Tensor]:
        both = (self.first(one) + self.second(other)).tanh()
        return {"sum": both.sum(1), "logits": self.head(both)}


def of_pair(output: dict[str, Tensor], target: dict[str, Tensor]) -> Tensor:
    classes = F.cross_entropy(output["logits"], target["class"], reduction="none")
    return (output["sum"] - target["sum"]).square() + classes


class Joined(nn.Module):
    """Of an image and a row of numbers."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(198, 5)

    def forward(self, image: Tensor, row: Tensor) -> Tensor:
        return self.layer(torch.cat([image.flatten(1), row], 1))
