"""timm's models by name, with a head for the dataset's classes; the only file that imports timm."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from torch import nn

from ninefold.errors import (
    CheckpointError,
    ConfigError,
    DataError,
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
    file(settings(name), name, local=False)


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
    path = file(cfg, name, local=True)
    if path.suffix == ".npz":  # which the models of some papers read themselves
        source: dict[str, Any] = {"file": str(path), "custom_load": True}
    else:
        source = {"state_dict": read(path)}
    options = {**options, "pretrained": True, "pretrained_cfg_overlay": source}
    try:
        fitted = create(name, cfg.num_classes, channels, size, **options)
    except RuntimeError as error:
        wrong = f"the weights in {path} do not fit timm's {name}"
        do = "install another version of timm, or give init=FILE init_partial=true"
        raise CheckpointError(FIELD, "true", wrong, one_line(str(error))[:300], do) from error
    layers = (cfg.classifier,) if isinstance(cfg.classifier, str) else cfg.classifier or ()
    head = () if classes == cfg.num_classes else tuple(f"{layer}." for layer in layers)
    drawn = [key for key in model.state_dict() if key.startswith(head)]
    tensors = {key: value for key, value in fitted.state_dict().items() if key not in drawn}
    tag = "" if "." in name or not cfg.tag else f".{cfg.tag}"
    return Pretrained(f"timm's {name}{tag}", tensors, drawn)


def read(path: Path) -> dict[str, Any]:
    """The tensors in a file. Raises DataError."""
    if path.suffix != ".safetensors":
        return hub.read(path, FIELD, "true")
    from safetensors import SafetensorError
    from safetensors.torch import load_file

    try:
        found: dict[str, Any] = load_file(path)
    except (OSError, SafetensorError) as error:
        raise hub.unusable(path, FIELD, "true", error) from error
    return found


def file(cfg: Any, name: str, local: bool) -> Path:
    """The file of a model's weights on this host; unless `local` it is fetched if need be.

    Raises ConfigError, DataError.
    """
    if cfg.hf_hub_id:
        return hub_file(cfg, local)
    if not isinstance(cfg.url, str) or not cfg.url:
        do = "name another model, or give init=FILE"
        raise ConfigError(FIELD, "true", f"timm has no weights for {name}", "false is allowed", do)
    if not local:
        hub.fetch(cfg.url, FIELD, "true")
    return hub.cached(cfg.url)


def hub_file(cfg: Any, local: bool) -> Path:
    """The same for a model of the Hugging Face hub, in the library's own cache."""
    from huggingface_hub import hf_hub_download, try_to_load_from_cache
    from huggingface_hub.errors import RemoteEntryNotFoundError

    repository, _, tag = cfg.hf_hub_id.partition("@")
    revision = tag or None
    given = cfg.hf_hub_filename or "pytorch_model.bin"
    safe = given.replace("pytorch_model", "model").removesuffix(".bin") + ".safetensors"
    names = [safe, given] if given.endswith(".bin") else [given]
    for filename in names:
        here = try_to_load_from_cache(repository, filename, revision=revision)
        if isinstance(here, str):
            return Path(here)
    if local:
        wrong = "this host does not have the file"
        allowed = f"the launcher of a new run fetches {names[0]} of {repository}"
        raise DataError(FIELD, "true", wrong, allowed, "let the hosts share HF_HOME")
    failed: Exception = FileNotFoundError(f"{repository} has none of {', '.join(names)}")
    for filename in names:
        try:
            return Path(hf_hub_download(repository, filename, revision=revision))
        except RemoteEntryNotFoundError as error:
            failed = error
        except Exception as error:  # of huggingface_hub, of its HTTP client, of the system
            failed = error
            break
    needed = f"{names[0]} of {repository} is needed once, in the cache of huggingface_hub"
    raise hub.not_fetched(FIELD, "true", failed, needed) from failed
