"""Train with Lightning Fabric: python with_fabric.py"""

import lightning
import torch
from network import Images, network
from torch.nn.functional import cross_entropy
from torch.utils.data import DataLoader

fabric = lightning.Fabric()
fabric.launch()
net = network()
model, optimizer = fabric.setup(net, torch.optim.SGD(net.parameters(), lr=0.01))
batches = fabric.setup_dataloaders(DataLoader(Images(), batch_size=64, shuffle=True))
for _ in range(1000):
    for images, labels in batches:
        optimizer.zero_grad()
        fabric.backward(cross_entropy(model(images), labels))
        optimizer.step()
