"""Sees that the weights that a new run begins with are on this host."""

from __future__ import annotations

from collections.abc import Mapping
from importlib import import_module
from typing import Any

from ninefold.checkpoint import manifest
from ninefold.config import untrusted
from ninefold.errors import ConfigError, require_package


def prepare(init: Any, net: Mapping[str, Any]) -> None:
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
