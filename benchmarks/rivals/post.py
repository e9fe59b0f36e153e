"""The pipeline and the loop of the published nine-way comparison, rewritten.

Images go one by one through PIL and torchvision's transforms, and a DataLoader that does not
shuffle collates them; the model is contiguous, the optimizer has its defaults; loss and hits are
read at every step.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from PIL import Image
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset
from torchvision import transforms

from ninefold.dataset import Examples


class Pictures(Dataset[tuple[Any, int]]):
    """As torchvision's CIFAR10: each array becomes a PIL image, which is transformed."""

    def __init__(self, examples: Examples, transform: Any) -> None:
        images = examples.inputs[np.arange(len(examples))]
        self.data = np.ascontiguousarray(images.transpose(0, 2, 3, 1))
        self.targets = examples.targets.tolist()
        self.transform = transform

    def __len__(self) -> int:
        return len(self.targets)

    def __getitem__(self, index: int) -> tuple[Any, int]:
        return self.transform(Image.fromarray(self.data[index])), self.targets[index]


def loader(examples: Examples, batch_size: int, size: int | None) -> DataLoader[Any]:
    """A DataLoader that resizes to `size` pixels, if given.

    It has no worker processes: on two cores that both train they gained nothing.
    """
    resize = [transforms.Resize((size, size))] if size else []
    transform = transforms.Compose([*resize, transforms.ToTensor()])
    return DataLoader(Pictures(examples, transform), batch_size=batch_size)


def train(
    model: nn.Module, batches: Any, optimizer: torch.optim.Optimizer, device: torch.device
) -> tuple[float, float]:
    """Train on `batches`, (inputs, targets) each; returns mean loss and accuracy."""
    criterion = nn.CrossEntropyLoss()
    model.train()
    total_loss, correct, total, steps = 0.0, 0, 0, 0
    for inputs, targets in batches:
        inputs, targets = inputs.to(device), targets.to(device)
        outputs: Tensor = model(inputs)
        loss = criterion(outputs, targets)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        total_loss += loss.item()
        _, predicted = outputs.max(1)
        total += targets.size(0)
        correct += predicted.eq(targets).sum().item()
        steps += 1
    return total_loss / steps, correct / total


@torch.no_grad()
def test(model: nn.Module, batches: Any, device: torch.device) -> float:
    """The accuracy on all of `batches`."""
    model.eval()
    correct, total = 0, 0
    for inputs, targets in batches:
        outputs = model(inputs.to(device))
        correct += outputs.argmax(1).eq(targets.to(device)).sum().item()
        total += targets.size(0)
    return correct / total
