"""Networks and losses of users, of anything but single images with classes."""

import torch
import torch.nn.functional as F
from torch import Tensor, nn


class Features(nn.Module):
    """Of a table with numbers and categories, by name."""

    def __init__(self) -> None:
        super().__init__()
        self.embed, self.layer = nn.Embedding(5, 3), nn.Linear(12, 3)

    def forward(self, x_cont: Tensor, x_cat: Tensor) -> Tensor:
        return self.layer(torch.cat([x_cont, self.embed(x_cat).flatten(1)], 1))


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


class Words(nn.Module):
    """Of tokens and the mask of those that count."""

    def __init__(self) -> None:
        super().__init__()
        self.embed, self.head = nn.Embedding(11, 4), nn.Linear(4, 2)

    def forward(self, ids: Tensor, mask: Tensor) -> Tensor:
        return self.head((self.embed(ids) * mask[..., None]).sum(1))


class Decoder(nn.Module):
    """Returns (logits, loss) as nanoGPT's GPT: of the last place alone where it gets no targets."""

    def __init__(self) -> None:
        super().__init__()
        self.embed, self.head = nn.Embedding(11, 8), nn.Linear(8, 11)

    def forward(self, idx: Tensor, targets: Tensor | None = None) -> tuple[Tensor, Tensor | None]:
        features = self.embed(idx).cumsum(1)
        if targets is None:
            return self.head(features[:, [-1]]), None
        logits = self.head(features)
        return logits, F.cross_entropy(logits.flatten(0, 1), targets.flatten())


class VAE(nn.Module):
    """Returns (recon, mu, logvar); draws in training and in evaluations."""

    def __init__(self, draws: bool = True) -> None:
        super().__init__()
        self.encode, self.decode, self.draws = nn.Linear(6, 4), nn.Linear(2, 6), draws

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        mu, logvar = self.encode(x).chunk(2, dim=1)
        noise = torch.randn_like(mu) if self.draws else 0
        return self.decode(mu + noise * (logvar / 2).exp()).sigmoid(), mu, logvar


class ImageAndRow(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv, self.head = nn.Conv2d(3, 4, 3), nn.Linear(10, 2)

    def forward(self, image: Tensor, row: Tensor) -> Tensor:
        assert image.dtype == torch.float32
        assert image.max() <= 1
        return self.head(torch.cat([self.conv(image).mean((2, 3)), row], 1))
