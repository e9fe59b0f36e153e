"""Refuses, before it has a folder, a run whose network or loggers need a package that is absent."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ninefold.errors import require_package

NEEDED = {  # by a module; the package's name is that of its extra and of the option too
    "ninefold.logger.mlflow": "mlflow",
    "ninefold.logger.wandb": "wandb",
    "ninefold.model.timm": "timm",
}


def require(job: Mapping[str, Any]) -> None:
    """See that the packages of our extras that `job` needs are installed. Raises ConfigError.

    What uses them looks again: the model may be a checkpoint's, the logger a subclass of ours.
    """
    nodes = [("model", job["model"]["net"])]
    nodes += [("logger", node) for node in (job["logger"] or {}).values()]
    for group, node in nodes:
        if package := NEEDED.get(str(node["_target_"]).rpartition(".")[0]):
            require_package(group, package, package, package)
