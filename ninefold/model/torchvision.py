"""torchvision's classification models by name, with a head for the dataset's classes."""

from __future__ import annotations

import re
from typing import Any

from torch import Tensor, nn
from torchvision import models
from torchvision.models import WeightsEnum
from torchvision.models.vision_transformer import interpolate_embeddings

from ninefold.errors import ConfigError, suggestion
from ninefold.model import Pretrained, hub

FIELD = "model.net.weights"
# While training they return several outputs, unless told not to. Their weights are for pixels from
# -1 to 1, to which they can convert images that are normalized as those of the other models.
INCEPTIONS = ("googlenet", "inception_v3")
AUXILIARY = ("aux1.", "aux2.", "AuxLogits.")  # parts of INCEPTIONS that are left out
POSITIONS = "encoder.pos_embedding"  # of a ViT: one for each patch of an image
# In older files a layer of DenseNet is called `norm.1` that is now `norm1`.
DENSE = re.compile(r"(.*denselayer\d+\.(?:norm|relu|conv))\.([12]\..*)")


def network(
    name: str, classes: int, channels: int = 3, size: int | None = None, weights: str | None = None
) -> nn.Module:
    """The model that torchvision calls `name`, from [n, channels, h, w] to logits [n, classes].

    size: of the images, for models that take one size; None: as published.
    weights: without effect here, as nothing is read or fetched: see `pretrained`.
    Raises ConfigError.
    """
    options: dict[str, Any] = {}
    if known(name) in INCEPTIONS:
        options = {"aux_logits": False, "transform_input": channels == 3, "init_weights": True}
    if size is not None and name.startswith("vit_"):
        options["image_size"] = size
    if size is not None and name.startswith("maxvit_"):
        options["input_size"] = (size, size)
    model: nn.Module = models.get_model(name, weights=None, num_classes=classes, **options)
    if channels != 3:
        first = model.get_submodule(first_convolution(model))
        assert isinstance(first, nn.Conv2d)
        first.weight = nn.Parameter(for_channels(first.weight.detach(), channels))
        first.in_channels = channels
    return model


def known(name: str) -> str:
    """`name` if it is one of torchvision's classification models. Raises ConfigError."""
    names: list[str] = models.list_models(module=models)
    if name in names:
        return name
    wrong = "torchvision has no such model"
    do = "name one of its classification models"
    raise ConfigError("model.net.name", name, wrong, suggestion(str(name), names), do)


def first_convolution(model: nn.Module) -> str:
    """The name of the layer that sees the images."""
    layers = (name for name, module in model.named_modules() if isinstance(module, nn.Conv2d))
    return str(next(layers))


def for_channels(weight: Tensor, channels: int) -> Tensor:
    """Weights [n, 3, h, w] of a first convolution for images of so many channels, as timm does it.

    For gray images they are summed: the output is that for the image repeated in three channels.
    """
    if channels == 1:
        return weight.sum(dim=1, keepdim=True)
    return weight.repeat(1, -(-channels // 3), 1, 1)[:, :channels] * (3 / channels)


def head(model: nn.Module) -> str:
    """The name of the layer that computes the logits: the last linear one or 1x1 convolution."""
    layers = [
        name
        for name, module in model.named_modules()
        if isinstance(module, nn.Linear)
        or (isinstance(module, nn.Conv2d) and module.kernel_size == (1, 1))
    ]
    return str(layers[-1])


def entry(name: str, weights: str) -> WeightsEnum:
    """torchvision's entry of the weights: `DEFAULT`, or a name such as `IMAGENET1K_V1`."""
    options = models.get_model_weights(known(name))
    try:
        chosen: WeightsEnum = options.verify(str(weights))
    except KeyError as error:
        wrong = f"{name} has no such weights"
        allowed = f"torchvision has {', '.join(options.__members__) or 'none of it'}"
        raise ConfigError(FIELD, weights, wrong, allowed, "name one of them, or null") from error
    return chosen


def fetch(name: str, weights: str, **others: Any) -> None:
    """Download pretrained weights, unless they are on this host. Raises ConfigError, DataError."""
    hub.fetch(entry(name, weights).url, FIELD, weights)


def pretrained(
    model: nn.Module, name: str, weights: str, channels: int = 3, **others: Any
) -> Pretrained:
    """The weights that `fetch` has fetched, to be loaded into `model`. Raises DataError."""
    chosen = entry(name, weights)
    found = hub.read(hub.cached(chosen.url), FIELD, weights)
    state = {
        DENSE.sub(r"\1\2", key): value
        for key, value in found.items()
        if not key.startswith(AUXILIARY)
    }
    own = model.state_dict()
    first = f"{first_convolution(model)}.weight"
    if channels != 3 and first in state:
        state[first] = for_channels(state[first], channels)
    if POSITIONS in own and POSITIONS in state:
        size: Any = model.image_size
        patch: Any = model.patch_size
        state |= interpolate_embeddings(size, patch, {POSITIONS: state[POSITIONS]})
    last = [key for key in own if key.startswith(f"{head(model)}.")]
    fits = all(key in state and state[key].shape == own[key].shape for key in last)
    drawn = [] if fits else last
    tensors = {key: value for key, value in state.items() if key not in drawn}
    return Pretrained(str(chosen), tensors, drawn)
