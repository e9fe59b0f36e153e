"""A training with a schedule and a GradScaler that saves all. --lose: what is not restored."""

import argparse
from pathlib import Path

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

parser = argparse.ArgumentParser()
parser.add_argument("--out", type=Path)
parser.add_argument("--resume", type=Path)
parser.add_argument("--lose", default="")
parser.add_argument("--seed", type=int, default=0)
asked = parser.parse_args()
torch.set_num_threads(1)
torch.manual_seed(asked.seed)
net = nn.Sequential(nn.Linear(12, 32), nn.Dropout(0.2), nn.GELU(), nn.Linear(32, 3))
optimizer = torch.optim.AdamW(net.parameters(), 1e-2)
schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 0.9**step)
scaler = torch.amp.GradScaler("cpu", init_scale=1024.0, growth_interval=3)
rows = torch.randn(512, 12)
data = TensorDataset(rows, rows[:, :3].argmax(1))
epoch, position, parts = 0, 0, {"optimizer": optimizer, "schedule": schedule, "scaler": scaler}
state = None
if asked.resume:
    state = torch.load(asked.resume)
    net.load_state_dict(state["net"])
    for name, part in parts.items():
        if name != asked.lose:
            part.load_state_dict(state[name])
    if asked.lose != "position":
        epoch, position = state["epoch"], state["position"]
while True:
    draws = torch.Generator().manual_seed(asked.seed + epoch)
    loader = DataLoader(data, 32, shuffle=True, generator=draws)
    for number, (row, target) in enumerate(loader):
        if number < position:
            continue
        if state is not None:
            torch.set_rng_state(state["random"])
            state = None
        loss = nn.functional.cross_entropy(net(row), target)
        optimizer.zero_grad()
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        schedule.step()
        if number == 4 and not asked.resume:
            saved = {name: part.state_dict() for name, part in parts.items()}
            saved |= {"net": net.state_dict(), "epoch": epoch, "position": number + 1}
            torch.save({**saved, "random": torch.get_rng_state()}, asked.out / "last.pt")
    epoch, position = epoch + 1, 0
