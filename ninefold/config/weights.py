"""Checks what a new run's weights are read from, and fetches pretrained ones, in the launcher."""

from __future__ import annotations

from collections.abc import Mapping
from importlib import import_module
from pathlib import Path
from typing import Any

from ninefold.checkpoint import manifest
from ninefold.config import untrusted
from ninefold.errors import CheckpointError, ConfigError, require_package


def prepare(job: Mapping[str, Any]) -> None:
    """See that the weights that a new run of `job` asks for are on this host. Raises Failure."""
    net, init = job["model"]["net"], job.get("init")
    asked = untrusted.pretrained(net)
    module = untrusted.fetching(str(net["_target_"]))
    if init is not None:
        if asked is not None:
            raise ConfigError(
                "init",
                init,
                f"model.net.{asked[0]}={asked[1]} names weights too; one of the two is allowed; "
                "leave one of them out",
            )
        _require_file(Path(init).expanduser(), init)
    else:
        for key in ("init_partial", "init_without"):
            if value := job.get(key):
                raise ConfigError(
                    key,
                    "true" if value is True else f"[{','.join(value)}]",
                    "there is nothing to load, as init=null; a weights file or a run folder is "
                    f"allowed as init; set init, or leave {key} out",
                )
    if asked is not None and module is not None:
        _fetch(net, module, *asked)


def _require_file(path: Path, given: str) -> None:
    file = manifest.named(path)
    if not manifest.is_checkpoint(file):
        raise CheckpointError(
            "init",
            given,
            f"no such checkpoint; looked for {file.absolute()}; name a run folder or a file",
        )
    if file.suffix == ".safetensors":
        require_package("init", file, "safetensors", "safetensors")


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
