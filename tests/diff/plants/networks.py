"""Networks that differ in one thing. --head=copy: it copies the embedding in place of sharing it;
--frozen: the prefix of parameters that are not trained; --half: autocast to fp16 without a scaler;
--tidy: the same with other names, functions, and log-probabilities.
"""

import argparse

import torch
from torch import nn
from torch.nn import functional

parser = argparse.ArgumentParser()
parser.add_argument("--head", choices=("tied", "copy"), default="tied")
parser.add_argument("--frozen", default="")
parser.add_argument("--half", action="store_true")
parser.add_argument("--tidy", action="store_true")
parser.add_argument("--seed", type=int, default=0)
asked = parser.parse_args()
torch.set_num_threads(1)
torch.manual_seed(asked.seed)


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(64, 16)
        self.body = nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 16))
        self.norm = nn.LayerNorm(16)
        self.head = nn.Linear(16, 64, bias=False)

    def forward(self, x):
        x = self.embed(x)
        return self.head(self.norm(x + self.body(x)))


class Tidy(nn.Module):
    def __init__(self):
        super().__init__()
        self.tokens = nn.Embedding(64, 16)
        self.up, self.down = nn.Linear(16, 32), nn.Linear(32, 16)
        self.ln = nn.LayerNorm(16)
        self.out = nn.Linear(16, 64, bias=False)

    def forward(self, x):
        x = self.tokens(x)
        return functional.log_softmax(self.out(self.ln(x + self.down(self.up(x).relu()))), -1)


net = Tidy() if asked.tidy else Net()
embed, head = (net.tokens, net.out) if asked.tidy else (net.embed, net.head)
if asked.head == "copy":
    head.weight.data.copy_(embed.weight.data)
else:
    head.weight = embed.weight
trained = []
for name, weight in net.named_parameters():
    weight.requires_grad_(not (asked.frozen and name.startswith(asked.frozen)))
    trained += [weight] * weight.requires_grad
optimizer = torch.optim.AdamW(trained, 3e-3)
draws = torch.Generator().manual_seed(asked.seed)
for _ in range(1000):
    words = torch.randint(0, 64, (16, 9), generator=draws)
    with torch.autocast("cpu", torch.float16, enabled=asked.half):
        out = net(words[:, :-1])
    if asked.tidy:
        loss = functional.nll_loss(out.flatten(0, 1), words[:, 1:].flatten())
    else:
        loss = functional.cross_entropy(out.flatten(0, 1).float(), words[:, 1:].flatten())
    optimizer.zero_grad()
    (1e-4 * loss if asked.half else loss).backward()
    optimizer.step()
