"""Train with accelerate: python with_accelerate.py"""

import accelerate
import torch
from network import Images, network
from torch.nn.functional import cross_entropy
from torch.utils.data import DataLoader

accelerator = accelerate.Accelerator()
net = network()
model, optimizer, batches = accelerator.prepare(
    net,
    torch.optim.SGD(net.parameters(), lr=0.01),
    DataLoader(Images(), batch_size=64, shuffle=True),
)
for _ in range(1000):
    for images, labels in batches:
        optimizer.zero_grad()
        accelerator.backward(cross_entropy(model(images), labels))
        optimizer.step()
