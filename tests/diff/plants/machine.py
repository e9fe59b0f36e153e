"""A convolution's bias before BatchNorm, by Adam. --threads, --workers: those of the machine."""

import argparse

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

parser = argparse.ArgumentParser()
parser.add_argument("--threads", type=int, default=1)
parser.add_argument("--workers", type=int, default=0)
parser.add_argument("--seed", type=int, default=0)
asked = parser.parse_args()
torch.set_num_threads(asked.threads)
torch.manual_seed(asked.seed)
net = nn.Sequential(nn.Conv2d(3, 16, 3), nn.BatchNorm2d(16), nn.ReLU(), nn.Conv2d(16, 16, 3),
                    nn.BatchNorm2d(16), nn.ReLU(), nn.Flatten(), nn.Linear(2304, 10))  # fmt: skip
optimizer = torch.optim.Adam(net.parameters(), 1e-3)
images = torch.randn(512, 3, 16, 16)
data = TensorDataset(images, images.mean((1, 2, 3)).mul(100).long().remainder(10))
for _ in range(100):
    for image, target in DataLoader(data, 32, shuffle=True, num_workers=asked.workers):
        loss = nn.functional.cross_entropy(net(image), target)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
