"""Images by one process or DDP. --fixed-order: no set_epoch; --rank-seeds: dropout is seeded by
rank; --dropout, --batchnorm: the network has it.
"""

import argparse

import torch
import torch.distributed as dist
from torch import nn
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

parser = argparse.ArgumentParser()
for flag in ("fixed-order", "rank-seeds", "dropout", "batchnorm"):
    parser.add_argument(f"--{flag}", action="store_true")
parser.add_argument("--seed", type=int, default=0)
asked = parser.parse_args()
torch.set_num_threads(1)
torch.manual_seed(asked.seed)
several = dist.is_torchelastic_launched()
if several:
    dist.init_process_group("gloo")
rank, world = (dist.get_rank(), dist.get_world_size()) if several else (0, 1)
layers = [nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4) if asked.batchnorm else nn.Identity(), nn.ReLU()]
layers += [nn.Flatten(), nn.Dropout(0.3) if asked.dropout else nn.Identity(), nn.Linear(144, 5)]
net = nn.Sequential(*layers)
model = nn.parallel.DistributedDataParallel(net) if several else net
optimizer = torch.optim.SGD(model.parameters(), 0.05, momentum=0.9)
images = torch.randn(64, 1, 8, 8)
data = TensorDataset(images, images.sum((1, 2, 3)).long().remainder(5))
sampler = DistributedSampler(data, world, rank, shuffle=True, seed=asked.seed)
loader = DataLoader(data, 16 // world, sampler=sampler)
torch.manual_seed(asked.seed + rank * asked.rank_seeds)
for epoch in range(1000):
    if not asked.fixed_order:
        sampler.set_epoch(epoch)
    for image, target in loader:
        loss = nn.functional.cross_entropy(model(image), target)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
