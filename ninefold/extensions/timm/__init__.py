"""timm's models by name, with a head for the dataset's classes; the only file that imports timm."""

from __future__ import annotations

from typing import Any

from torch import nn

from ninefold.errors import (
    CheckpointError,
    ConfigError,
    one_line,
    require_package,
    suggestion,
)
from ninefold.model import Pretrained, hub

EXTRA = "timm"
FIELD = "model.net.pretrained"


def network(
    name: str,
    classes: int,
    channels: int = 3,
    size: int | None = None,
    pretrained: bool = False,
    **options: Any,
) -> nn.Module:
    """The model that timm calls `name`, from [n, channels, h, w] to logits [n, classes].

    size: of the images, for models that take one size; None: as published.
    pretrained: without effect here, as nothing is read or fetched: see the function `pretrained`.
    options: timm's own arguments of the model, such as drop_path_rate.
    Raises ConfigError.
    """
    return create(name, classes, channels, size, **options)


def create(name: str, classes: int, channels: int, size: int | None, **options: Any) -> nn.Module:
    """timm's `create_model` for a name that it knows itself."""
    cfg = settings(name)
    import timm

    if cfg.fixed_input_size and size is not None:
        options["img_size"] = size
    model: nn.Module = timm.create_model(name, num_classes=classes, in_chans=channels, **options)
    return model


def settings(name: str) -> Any:
    """timm's PretrainedCfg of a model: input size, normalization, where its weights are.

    A name leads to no other place, as `hf-hub:OWNER/NAME` would. Raises ConfigError.
    """
    require_package("model", EXTRA, EXTRA, EXTRA)
    import timm

    if not timm.is_model(str(name)):
        allowed = suggestion(str(name), timm.list_models())
        raise ConfigError("model.net.name", name, "timm has no such model", allowed, "name another")
    try:
        cfg = timm.models.get_pretrained_cfg(name)
    except RuntimeError as error:
        model = name.partition(".")[0]
        tags = ", ".join(timm.list_pretrained(f"{model}.*"))
        wrong = f"{model} has no such weights"
        allowed = f"timm has {tags or 'none of it'}"
        do = f"name one of them, or {model}"
        raise ConfigError("model.net.name", name, wrong, allowed, do) from error
    return timm.models.PretrainedCfg() if cfg is None else cfg


def fetch(name: str, pretrained: bool, **others: Any) -> None:
    """Download pretrained weights, unless they are on this host. Raises ConfigError, DataError."""
    source(settings(name), name)


def pretrained(
    model: nn.Module,
    name: str,
    classes: int,
    channels: int = 3,
    size: int | None = None,
    pretrained: bool = True,
    **options: Any,
) -> Pretrained:
    """The weights that `fetch` has fetched, to be loaded into `model`.

    timm itself fits them to other channels and sizes, in a model of its own, which has the classes
    of the file: only then does timm require all names to match. Raises CheckpointError, DataError.
    """
    cfg = settings(name)
    options = {**options, "pretrained": True, "pretrained_cfg_overlay": source(cfg, name)}
    try:
        fitted = create(name, cfg.num_classes, channels, size, **options)
    except RuntimeError as error:
        wrong = f"its weights do not fit timm's {name}"
        do = "install another version of timm, or give init=FILE init_partial=true"
        raise CheckpointError(FIELD, "true", wrong, one_line(str(error))[:300], do) from error
    layers = cfg.classifier or ()
    layers = (layers,) if isinstance(layers, str) else layers
    own = model.state_dict()
    drawn = [
        key
        for key in own
        if classes != cfg.num_classes and key.startswith(tuple(f"{layer}." for layer in layers))
    ]
    tensors = {key: value for key, value in fitted.state_dict().items() if key not in drawn}
    tag = "" if "." in name or not cfg.tag else f".{cfg.tag}"
    return Pretrained(f"timm's {name}{tag}", tensors, drawn)


def source(cfg: Any, name: str) -> dict[str, Any]:
    """Where timm is to take a model's weights from: tensors, or a file that the model itself reads.

    They are fetched unless they are on this host: those of the Hugging Face hub are in its cache.
    Raises ConfigError, DataError.
    """
    import timm

    if cfg.hf_hub_id:
        place = filter(None, (cfg.hf_hub_id, cfg.hf_hub_filename))
        try:
            return {"state_dict": timm.models.load_state_dict_from_hf(*place)}
        except Exception as error:  # of huggingface_hub, of its HTTP client, of the system
            needed = f"{cfg.hf_hub_id} is needed once, in the cache of huggingface_hub"
            raise hub.not_fetched(FIELD, "true", error, needed) from error
    if not cfg.url:
        do = "name another model, or give init=FILE"
        raise ConfigError(FIELD, "true", f"timm has no weights for {name}", "false is allowed", do)
    hub.fetch(cfg.url, FIELD, "true")
    path = hub.cached(cfg.url)
    if path.suffix == ".npz":  # which the models of some papers read themselves
        return {"file": str(path), "custom_load": True}
    return {"state_dict": hub.read(path, FIELD, "true")}
