"""What a new run needs on this host besides its data: packages, and files of weights."""

from __future__ import annotations

from collections.abc import Mapping
from importlib import import_module
from typing import Any

from ninefold.checkpoint import manifest
from ninefold.config import options, untrusted
from ninefold.errors import ConfigError, require_package


def require_packages(job: Mapping[str, Any]) -> None:
    """See that the packages of our extras that the network and the loggers of `job` need are
    installed, before the run has a folder. Raises ConfigError.

    What uses them looks again: the model may be a checkpoint's, the logger a subclass of ours.
    """
    nodes = [("model", job["model"]["net"])]
    nodes += [("logger", node) for node in (job["logger"] or {}).values()]
    for group, node in nodes:
        if package := options.extra_of(str(node["_target_"])):
            require_package(group, package, package, package)


def prepare_weights(init: Any, net: Mapping[str, Any]) -> None:
    """See that the weights that a new run begins with are on this host; fetch pretrained ones.

    init: as typed. net: `model.net`. Raises Failure.
    """
    asked = untrusted.pretrained(net)
    if init is not None:
        if asked is not None:
            raise ConfigError(
                "init",
                init,
                f"model.net.{asked[0]}={asked[1]} names weights too; one of the two is allowed; "
                "leave one of them out",
            )
        file = manifest.required("init", init)
        if file.suffix == ".safetensors":
            require_package("init", init, "safetensors", "safetensors")
    if asked is not None and (module := untrusted.fetching(str(net["_target_"]))) is not None:
        _fetch(net, module, *asked)


def _fetch(net: Mapping[str, Any], module: str, key: str, value: Any) -> None:
    """Fetch the pretrained weights of `net`, if `module` can."""
    fetch = getattr(import_module(module), "fetch", None)
    if fetch is None:
        raise ConfigError(
            f"model.net.{key}",
            value,
            "each process would download it; model=torchvision and model=timm fetch it once, "
            f"before the run; use one of them, or model.net.{key}=null with init=FILE",
        )
    fetch(**{name: each for name, each in net.items() if name != "_target_"})
