"""torchvision's segmentation models by name, and their pretrained backbones."""

from __future__ import annotations

from typing import Any

from torch import nn
from torchvision.models import get_model

from ninefold.errors import ConfigError
from ninefold.model import Pretrained, hub
from ninefold.model.torchvision import entry

FIELD = "model.net.weights_backbone"


def network(
    name: str, weights: str | None = None, weights_backbone: str | None = None, **options: Any
) -> nn.Module:
    """The model that torchvision calls `name`.

    weights, weights_backbone: without effect here, as nothing is read or fetched: see `pretrained`.
    options: torchvision's own arguments of the model, such as num_classes.
    """
    model: nn.Module = get_model(name, weights=None, weights_backbone=None, **options)
    return model


def backbone(name: str) -> str:
    """The classification model that is the backbone: `resnet50` of `deeplabv3_resnet50`."""
    return name.partition("_")[2]


def fetch(
    name: str, weights: str | None = None, weights_backbone: str | None = None, **others: Any
) -> None:
    """Download the weights, unless they are on this host. Raises ConfigError, DataError."""
    if weights is not None:
        raise ConfigError(
            "model.net.weights",
            weights,
            "weights of a whole segmentation model are of its own classes",
            "model.net.weights_backbone=DEFAULT is allowed",
            "use it, or init=FILE init_partial=true",
        )
    hub.fetch(entry(backbone(name), str(weights_backbone), FIELD).url, FIELD, weights_backbone)


def pretrained(model: nn.Module, name: str, weights_backbone: str, **others: Any) -> Pretrained:
    """The weights that `fetch` has fetched, to be loaded into `model`. Raises DataError."""
    chosen = entry(backbone(name), weights_backbone, FIELD)
    state = hub.read(hub.cached(chosen.url), FIELD, weights_backbone)
    own = model.state_dict().keys()
    renamed = {f"backbone.{key.removeprefix('features.')}": value for key, value in state.items()}
    return Pretrained(
        str(chosen),
        {key: value for key, value in renamed.items() if key in own},  # without its own head
        [key for key in own if not key.startswith("backbone.")],
    )
