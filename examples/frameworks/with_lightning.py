"""Train with Lightning's Trainer: python with_lightning.py"""

import lightning
import torch
from network import Images, network
from torch.nn.functional import cross_entropy
from torch.utils.data import DataLoader


class Classifier(lightning.LightningModule):
    def __init__(self):
        super().__init__()
        self.network = network()

    def training_step(self, batch, number):
        images, labels = batch
        return cross_entropy(self.network(images), labels)

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.01)


if __name__ == "__main__":
    trainer = lightning.Trainer(logger=False, enable_checkpointing=False, max_epochs=1000)
    trainer.fit(Classifier(), DataLoader(Images(), batch_size=64, shuffle=True))
