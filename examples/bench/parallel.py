"""DataParallel or, under torchrun, DistributedDataParallel: both ways as scripts have them."""

from __future__ import annotations

import argparse
import os

import numpy as np
import torch
from torch import Tensor, distributed, nn
from torch.utils.data import DataLoader, Dataset, DistributedSampler


class Images(Dataset[tuple[Tensor, int]]):
    """Random images, brighter by class, that NumPy makes one by one, on one core."""

    def __len__(self) -> int:
        return 4096

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        label = index % 10
        image = np.random.default_rng(index).normal(label / 10, size=(3, 64, 64))
        return torch.from_numpy(image[:, ::2, ::2].astype(np.float32)), label


def network() -> nn.Module:
    convolution = nn.Conv2d(3, 16, 5, stride=4)
    return nn.Sequential(convolution, nn.ReLU(), nn.Flatten(), nn.Linear(16 * 49, 10))


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--batch", type=int, default=64, help="of a process")
    args = parser.parse_args()
    images, on_gpu, ddp = Images(), torch.cuda.is_available(), "RANK" in os.environ
    if ddp:
        distributed.init_process_group()
        device = f"cuda:{os.environ['LOCAL_RANK']}" if on_gpu else "cpu"
        model: nn.Module = nn.parallel.DistributedDataParallel(network().to(device))
        loader = DataLoader(images, args.batch, sampler=DistributedSampler(images))
    else:
        device = "cuda" if on_gpu else "cpu"
        model = nn.DataParallel(network().to(device))
        loader = DataLoader(images, args.batch, shuffle=True)
    optimizer = torch.optim.AdamW(model.parameters())
    for epoch in range(90):
        if isinstance(loader.sampler, DistributedSampler):
            loader.sampler.set_epoch(epoch)
        for pictures, labels in loader:
            loss = nn.functional.cross_entropy(model(pictures.to(device)), labels.to(device))
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        print(f"epoch {epoch}: loss {loss.item():.3f}")


if __name__ == "__main__":
    main()
