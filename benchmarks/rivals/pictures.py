"""Images one by one through PIL and torchvision's transforms, as most pipelines read them."""

from __future__ import annotations

from typing import Any

import numpy as np
from PIL import Image
from torch.utils.data import Dataset

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
