"""Models: input and output shapes, and logits that do not depend on other examples."""

from pathlib import Path

import pytest
import torch
from hydra.utils import instantiate
from omegaconf import OmegaConf
from torch import nn

from ninefold.model.convnet import ConvNet, PoolToQuarters
from ninefold.model.resnet18 import resnet18
from ninefold.model.unet import UNet

CONF = Path(__file__).parents[2] / "conf"


@pytest.mark.parametrize("channels", [1, 3])
@pytest.mark.parametrize("side", [8, 9, 16, 28, 32])
def test_the_convnet_maps_images_of_8_to_32_pixels_to_logits(channels, side):
    logits = ConvNet(channels, classes=7, width=8)(torch.rand(2, channels, side, side))
    assert logits.shape == (2, 7)
    assert logits.isfinite().all()


@pytest.mark.parametrize(("stem", "side"), [("small", 32), ("imagenet", 8)])
def test_the_small_stem_keeps_32_pixels_and_the_imagenet_stem_makes_8_of_them(stem, side):
    entering: list[torch.Size] = []
    with torch.device("meta"):
        model = resnet18(classes=10, stem=stem)
        model.layer1.register_forward_hook(lambda _, inputs, __: entering.append(inputs[0].shape))
        logits = model(torch.empty(2, 3, 32, 32))
    assert entering == [(2, 64, side, side)]
    assert logits.shape == (2, 10)


@pytest.mark.parametrize("name", ["alexnet", "resnet18"])
def test_a_configured_model_maps_its_input_to_a_logit_for_each_class(name):
    config = OmegaConf.create(
        {"dataset": {"classes": 7}, "model": OmegaConf.load(CONF / "model" / f"{name}.yaml")}
    ).model
    side = config.input_size or 32
    with torch.device("meta"):
        assert instantiate(config.net)(torch.empty(2, 3, side, side)).shape == (2, 7)


@pytest.mark.parametrize(("dims", "sides"), [(2, (17, 30)), (2, (8, 8)), (3, (9, 12, 10))])
def test_the_unet_maps_sides_of_any_length_to_logits_of_each_pixel(dims, sides):
    model = UNet(2, classes=5, width=4, depth=3, dims=dims)
    logits = model(torch.rand(2, 2, *sides))
    assert logits.shape == (2, 5, *sides)
    logits.square().sum().backward()
    gradients = {name: parameter.grad for name, parameter in model.named_parameters()}
    assert all(grad is not None and grad.abs().sum() > 0 for grad in gradients.values())


@pytest.mark.parametrize("side", [2, 7, 8])
def test_the_convnet_pools_as_adaptive_pooling_to_2x2_does(side):
    images = torch.rand(3, 4, side, side + 2).to(memory_format=torch.channels_last)
    assert torch.allclose(PoolToQuarters()(images), nn.AdaptiveAvgPool2d(2)(images), atol=1e-6)
