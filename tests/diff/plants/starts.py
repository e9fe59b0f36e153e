"""Starts that may differ. --noise: NumPy is not seeded; --threads: a sum in the order in which
threads finish; neither: all is seeded, and two workers load.
"""

import argparse
import random
import time
from concurrent.futures import ThreadPoolExecutor, as_completed

import numpy as np
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

parser = argparse.ArgumentParser()
parser.add_argument("--noise", action="store_true")
parser.add_argument("--threads", action="store_true")
parser.add_argument("--seed", type=int, default=0)
asked = parser.parse_args()
torch.set_num_threads(1)
torch.manual_seed(asked.seed)
random.seed(asked.seed)
if not asked.noise:
    np.random.seed(asked.seed)


def part(rows: torch.Tensor) -> torch.Tensor:
    time.sleep(0.002 * random.SystemRandom().random())
    return rows


class Rows(Dataset):
    def __init__(self):
        self.rows = torch.randn(256, 8)

    def __len__(self):
        return 256

    def __getitem__(self, index):
        noise = np.random.rand() if asked.noise or not asked.threads else 0.0
        return self.rows[index] + 0.1 * noise


net = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 1))
optimizer = torch.optim.Adam(net.parameters(), 1e-2)
workers = 0 if asked.noise or asked.threads else 2
pool = ThreadPoolExecutor(8)
for _ in range(100):
    for rows in DataLoader(Rows(), 32, shuffle=True, num_workers=workers):
        if asked.threads:
            parts = [pool.submit(part, rows * scale) for scale in (0.1, 0.7, 0.3, 1.1, 0.9)]
            rows = sum(each.result() for each in as_completed(parts))
        loss = (net(rows) - rows.sum(1, keepdim=True)).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
