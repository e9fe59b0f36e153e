"""A regression in micro-batches. --undivided: their losses are not divided by their number."""

import argparse

import torch

parser = argparse.ArgumentParser()
parser.add_argument("--micro", type=int, default=1)
parser.add_argument("--undivided", action="store_true")
parser.add_argument("--seed", type=int, default=0)
asked = parser.parse_args()
torch.manual_seed(asked.seed)
torch.set_num_threads(1)
net = torch.nn.Sequential(torch.nn.Linear(12, 32), torch.nn.Tanh(), torch.nn.Linear(32, 1))
optimizer = torch.optim.AdamW(net.parameters(), 1e-2)
data = torch.randn(2048, 12)
order = torch.randperm(2048).split(16)
for _ in range(100):
    for batch in order:
        for part in data[batch].chunk(asked.micro):
            loss = (net(part) - part.sum(1, keepdim=True)).square().mean()
            (loss if asked.undivided else loss / asked.micro).backward()
        optimizer.step()
        optimizer.zero_grad()
