"""A training script as many people have one: `ninefold bench` needs no change to it."""

from __future__ import annotations

import argparse

import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset


class Images(Dataset[tuple[Tensor, Tensor]]):
    """Random images, brighter by class, that are blurred one by one, which takes a while."""

    def __len__(self) -> int:
        return 4096

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        image = torch.randn(3, 64, 64, generator=torch.Generator().manual_seed(index))
        blurred = nn.functional.avg_pool2d(image, 5, stride=1, padding=2)
        label = index % 10
        return blurred[:, ::2, ::2] + label / 10, torch.tensor(label)


def network() -> nn.Module:
    layers: list[nn.Module] = []
    for inputs, outputs in ((3, 16), (16, 32), (32, 64)):
        layers += [nn.Conv2d(inputs, outputs, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2)]
    return nn.Sequential(*layers, nn.Flatten(), nn.Linear(64 * 16, 10))


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--amp", action="store_true", help="autocast to bfloat16")
    parser.add_argument("--workers", type=int, default=0, help="of the DataLoader")
    parser.add_argument("--batch", type=int, default=64, help="of a micro-batch")
    parser.add_argument("--accumulate", type=int, default=1, help="micro-batches in a step")
    parser.add_argument("--epochs", type=int, default=90)
    args = parser.parse_args()
    device = "cuda" if torch.cuda.is_available() else "cpu"
    model = network().to(device)
    optimizer = torch.optim.AdamW(model.parameters())
    loader = DataLoader(Images(), batch_size=args.batch, shuffle=True, num_workers=args.workers)
    for epoch in range(args.epochs):
        for number, (images, labels) in enumerate(loader, start=1):
            with torch.autocast(device, torch.bfloat16, enabled=args.amp):
                loss = nn.functional.cross_entropy(model(images.to(device)), labels.to(device))
            (loss / args.accumulate).backward()
            if number % args.accumulate == 0:
                optimizer.step()
                optimizer.zero_grad()
        print(f"epoch {epoch}: loss {loss.item():.3f}")


if __name__ == "__main__":
    main()
