"""Checkpoints to export, made without training, and networks whose export differs."""

from pathlib import Path

import torch
from omegaconf import DictConfig, OmegaConf
from torch import Tensor, nn

from ninefold.checkpoint.manifest import FORMAT
from ninefold.config.job import asked, check
from ninefold.launch.command import composed
from ninefold.train import build


def run_folder(folder: Path, *overrides: str) -> DictConfig:
    """Make a run folder with last.pt of a network as drawn, buffers too; returns its job."""
    config = composed("train", overrides, "")
    job = check(asked(config, config.hydra)).settle()
    found = OmegaConf.create(job.text)
    assert isinstance(found, DictConfig)
    model = build.network(found)
    for buffer in model.buffers():
        if buffer.is_floating_point():
            buffer.uniform_(0.5, 1.5)
    (folder / "checkpoints").mkdir(parents=True)
    content = {"format": FORMAT, "model": model.state_dict(), "config": job.text}
    torch.save(content, folder / "checkpoints" / "last.pt")
    return found


class Different(nn.Module):
    """Returns 0.13 more when it is exported: a network that an exporter gets wrong."""

    def __init__(self, classes: int) -> None:
        super().__init__()
        self.layer = nn.Linear(64, classes)

    def forward(self, images: Tensor) -> Tensor:
        wrong = 0.13 if torch.compiler.is_exporting() else 0.0
        return self.layer(images.flatten(1)) + wrong


class Turned(Different):
    """Decides otherwise when it is exported, though no output differs by more than is allowed."""

    def forward(self, images: Tensor) -> Tensor:
        sign = -1.0 if torch.compiler.is_exporting() else 1.0
        found: Tensor = self.layer(images.flatten(1)) * 1e-5
        places = torch.arange(found.shape[1]) == 3
        return found * 0 + sign * 4e-5 * places


class Sampling(Different):
    """Returns what it draws around its outputs, as a VAE does."""

    def forward(self, images: Tensor) -> Tensor:
        found: Tensor = self.layer(images.flatten(1))
        return found + torch.randn_like(found)


class OneSize(Different):
    """Makes a number of the size of a batch, which a graph then is of."""

    def forward(self, images: Tensor) -> Tensor:
        found: Tensor = self.layer(images.flatten(1))
        return found + torch.zeros(int(images.shape[0]), 1)


class Unexportable(Different):
    """Has a branch on a value, which no graph has."""

    def forward(self, images: Tensor) -> Tensor:
        found: Tensor = self.layer(images.flatten(1))
        return found if float(found.sum()) > 0 else -found
