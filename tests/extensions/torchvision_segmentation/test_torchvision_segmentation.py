"""Segmentation models of torchvision start with pretrained backbones."""

import torch

from ninefold.extensions import torchvision_segmentation
from tests.model.test_pretrained import cache, published

__all__ = ["cache"]


def test_a_segmentation_model_starts_with_the_backbone_of_a_classification_model(cache):
    theirs = published("mobilenet_v3_large")
    name = "lraspp_mobilenet_v3_large"
    torchvision_segmentation.fetch(name, None, "DEFAULT")  # it is here already
    model = torchvision_segmentation.network(name, None, "DEFAULT", num_classes=3)
    found = torchvision_segmentation.pretrained(model, name, weights_backbone="DEFAULT")
    own = model.state_dict()
    assert {key for key in own if key.startswith("backbone.")} == found.tensors.keys()
    assert found.tensors.keys().isdisjoint(found.drawn)
    first = found.tensors["backbone.0.0.weight"]
    assert torch.equal(first, theirs["features.0.0.weight"])
