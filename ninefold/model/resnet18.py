"""torchvision's ResNet-18, with a stem that fits small images where wanted."""

from __future__ import annotations

from typing import Literal

from torch import nn
from torchvision.models import ResNet
from torchvision.models import resnet18 as torchvision_resnet18


def resnet18(classes: int, stem: Literal["small", "imagenet"] = "small") -> ResNet:
    """ResNet-18 from [n, 3, h, w] to logits [n, classes].

    stem: `imagenet` as published (7x7, stride 2, pooling: 32 pixels become 8); `small` a 3x3
    convolution of stride 1 without pooling, as in the CIFAR experiments of He et al. (2015).
    """
    model = torchvision_resnet18(num_classes=classes)
    if stem == "small":
        model.conv1 = nn.Conv2d(3, 64, kernel_size=3, stride=1, padding=1, bias=False)
        nn.init.kaiming_normal_(model.conv1.weight, mode="fan_out", nonlinearity="relu")
        model.maxpool = nn.Identity()
    return model
