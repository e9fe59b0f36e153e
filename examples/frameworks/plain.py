"""Train in a loop without a framework: python plain.py"""

import torch
from network import Images, network
from torch.nn.functional import cross_entropy
from torch.utils.data import DataLoader

model = network()
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
batches = DataLoader(Images(), batch_size=64, shuffle=True)
for _ in range(1000):
    for images, labels in batches:
        optimizer.zero_grad()
        cross_entropy(model(images), labels).backward()
        optimizer.step()
