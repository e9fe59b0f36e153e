"""Train with Hugging Face's Trainer: python with_hf.py"""

import torch
import transformers
from network import Images, network
from torch import nn
from torch.nn.functional import cross_entropy


class Classifier(nn.Module):
    def __init__(self):
        super().__init__()
        self.network = network()

    def forward(self, images, labels):
        logits = self.network(images)
        return {"loss": cross_entropy(logits, labels), "logits": logits}


def collated(items):
    images, labels = zip(*items, strict=True)
    return {"images": torch.stack(images), "labels": torch.tensor(labels)}


arguments = transformers.TrainingArguments(
    output_dir="outputs/hf",
    per_device_train_batch_size=64,
    num_train_epochs=1000,
    save_strategy="no",
    report_to=[],
)
transformers.Trainer(
    Classifier(), arguments, data_collator=collated, train_dataset=Images()
).train()
