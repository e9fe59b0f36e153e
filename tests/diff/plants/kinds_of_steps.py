"""Trainings of other kinds, each of which prints its losses bit for bit."""

import sys

import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

kind = sys.argv[1]
torch.set_num_threads(1)
torch.manual_seed(0)


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.first = nn.Sequential(nn.Linear(8, 16), nn.ReLU(inplace=True), nn.Dropout(0.1))
        self.last = nn.Linear(16, 1)

    def forward(self, x):
        if kind.startswith("checkpoint"):
            return self.last(checkpoint(self.first, x, use_reentrant=kind.endswith("reentrant")))
        return self.last(self.first(x))


net = Net()
model = torch.compile(net, backend="aot_eager") if kind == "compiled" else net
optimizer = torch.optim.Adam(net.parameters(), 1e-2)
if kind == "closure":
    optimizer = torch.optim.LBFGS(net.parameters(), 0.1, max_iter=3)
critic = nn.Sequential(nn.Linear(1, 8), nn.Tanh(), nn.Linear(8, 1))
of_critic = torch.optim.Adam(critic.parameters(), 1e-2)


def gradients(weights, x):
    """Those of the mean over examples, one by one."""

    def of_row(weights, row):
        return torch.func.functional_call(net, weights, (row[None],)).square().mean()

    each = torch.vmap(torch.func.grad(of_row), (None, 0), randomness="different")(weights, x)
    return {name: of.mean(0) for name, of in each.items()}


def closure():
    optimizer.zero_grad()
    loss = model(x).square().mean()
    loss.backward()
    print(loss.item().hex(), flush=True)
    return loss


for _ in range(6):
    x = torch.randn(16, 8, requires_grad=True)
    if kind == "closure":
        optimizer.step(closure)
        continue
    if kind == "functional":
        weights = dict(net.named_parameters())
        each = gradients(weights, x.detach())
        for name, weight in weights.items():
            weight.grad = each[name]
        loss = each["last.weight"].sum()
    else:
        loss = model(x).square().mean()
        if kind == "two":
            loss = loss - critic(model(x)).mean()
        loss.backward()
    print(loss.item().hex(), flush=True)
    optimizer.step()
    optimizer.zero_grad()
    if kind == "two":
        of_critic.zero_grad()
        critic(model(x).detach()).square().mean().backward()
        of_critic.step()
