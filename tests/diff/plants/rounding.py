"""Four kinds of networks, three ways to train them, three precisions; in one batch or several."""

import argparse

import torch
from torch import nn

parser = argparse.ArgumentParser()
parser.add_argument("--network", choices=("dense", "convolutions", "attention", "groups"))
parser.add_argument("--optimizer", choices=("sgd", "adamw", "high"))
parser.add_argument("--dtype", choices=("float32", "bfloat16", "float16"))
parser.add_argument("--micro", type=int, default=1)
parser.add_argument("--seed", type=int, default=0)
asked = parser.parse_args()
torch.manual_seed(asked.seed)
torch.set_num_threads(1)


class Attention(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.last = nn.Linear(20, 32), nn.Linear(32, 10)
        self.layer = nn.TransformerEncoderLayer(32, 4, 64, 0.0, batch_first=True)

    def forward(self, x):
        return self.last(self.layer(self.first(x)).mean(1))


def dense():
    return nn.Sequential(
        nn.Linear(20, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10)
    )


def convolutions():
    first, second = nn.Conv2d(3, 16, 3), nn.Conv2d(16, 32, 3)
    end = nn.ReLU(), nn.Flatten(), nn.Linear(1152, 10)
    return nn.Sequential(first, nn.ReLU(), nn.MaxPool2d(2), second, *end)


def groups():
    end = nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(16, 10)
    return nn.Sequential(nn.Conv2d(3, 16, 3), nn.GroupNorm(4, 16), nn.GELU(), *end)


made = {"dense": dense, "convolutions": convolutions, "attention": Attention, "groups": groups}
net = made[asked.network]()
shape = {"dense": (20,), "attention": (8, 20)}.get(asked.network, (3, 18, 18))
images, classes = torch.randn(1024, *shape), torch.randint(0, 10, (1024,))
if asked.optimizer == "adamw":
    optimizer = torch.optim.AdamW(net.parameters(), 1e-3)
else:
    optimizer = torch.optim.SGD(net.parameters(), {"sgd": 0.05, "high": 0.5}[asked.optimizer], 0.9)
dtype, short = getattr(torch, asked.dtype), asked.dtype != "float32"
# With 65,536 a sum over the batch overflows in float16, and sums over its parts do not.
scaler = torch.amp.GradScaler("cpu", init_scale=1024.0, enabled=asked.dtype == "float16")
for _ in range(120):
    for part in torch.randint(0, 1024, (16,)).chunk(asked.micro):
        with torch.autocast("cpu", dtype if short else torch.bfloat16, enabled=short):
            out = net(images[part])
        loss = nn.functional.cross_entropy(out.float(), classes[part]) / asked.micro
        scaler.scale(loss).backward()
    scaler.step(optimizer)
    scaler.update()
    optimizer.zero_grad()
