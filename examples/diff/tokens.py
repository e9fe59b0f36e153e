"""Sentences of unequal lengths, by one process or DDP. --mean=ranks: each rank's own mean of loss;
tokens: the tokens of all ranks are counted.
"""

import argparse

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.functional import cross_entropy

parser = argparse.ArgumentParser()
parser.add_argument("--mean", choices=("ranks", "tokens"), default="tokens")
parser.add_argument("--seed", type=int, default=0)
asked = parser.parse_args()
torch.set_num_threads(1)
torch.manual_seed(asked.seed)
several = dist.is_torchelastic_launched()
if several:
    dist.init_process_group("gloo")
rank, world = (dist.get_rank(), dist.get_world_size()) if several else (0, 1)
net = nn.Sequential(nn.Embedding(50, 16), nn.Linear(16, 16), nn.GELU(), nn.Linear(16, 50))
model = nn.parallel.DistributedDataParallel(net) if several else net
optimizer = torch.optim.SGD(model.parameters(), 0.5)
draws = torch.Generator().manual_seed(asked.seed)
for _ in range(1000):
    words = torch.randint(0, 50, (8, 13), generator=draws)
    lengths = torch.randint(2, 13, (8, 1), generator=draws)
    targets = words[:, 1:].masked_fill(torch.arange(12) >= lengths, -100)
    mine, target = words[rank::world, :-1], targets[rank::world]
    logits = model(mine)
    total = cross_entropy(logits.flatten(0, 1), target.flatten(), reduction="sum")
    count = (target >= 0).sum().float()
    if asked.mean == "tokens" and several:
        dist.all_reduce(count)
        count /= world
    optimizer.zero_grad()
    (total / count).backward()
    optimizer.step()
