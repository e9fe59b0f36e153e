"""Stored configurations: older ones get the keys that were added since, where they are read."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import Any

from ninefold.config.schema import GROUPS, KEYS
from ninefold.files import flat

# Keys that older stored runs lack. They mean the default that the key has now ...
ADDED: dict[str, Any] = {
    name: KEYS[name].default
    for name in (
        *("init", "init_partial", "init_without", "freeze", "ema_warmup", "clip_grad_norm"),
        *("clip_grad_value", "checkpoint_activations", "cudnn_benchmark", "graph"),
        *("checkpoint.format", "loader.share", "loader.pinned", "launch.engine", "launch.dry"),
        *("parallel.devices", "parallel.loss_in_forward", "dataset.val", "dataset.exif"),
        *("dataset.targets", "dataset.cache", "dataset.cache_dir"),
        *("dataset.resident", "task.loss", "model.output", "optimizer.groups"),
        *("scheduler.per", "scheduler.warmup"),
    )
}
# ... or what was done before there was such a key.
ADDED |= dict.fromkeys(("loader.workers", "clock.probe", "clock.ceiling", "clock.link"), 0)


def upgrade(stored: Mapping[str, Any]) -> dict[str, Any]:
    """A stored job with the keys that it lacks as it is older than they are, without those gone.

    Not those of groups: not every option has them, and what reads one knows its default.
    """
    found = copy.deepcopy(dict(stored))
    for name, value in ADDED.items():
        section, _, key = name.rpartition(".")
        node = found.get(section) if section else found
        if section not in GROUPS and isinstance(node, dict):
            node.setdefault(key, copy.copy(value))
    dataset = found.get("dataset")
    if isinstance(dataset, dict):  # decoded examples, or a share of them, could be in memory
        dataset.pop("cache_rate", None)
        dataset.update({"cache": "disk"} if dataset.get("cache") == "ram" else {})
    return found


def comparable(job: Mapping[str, Any]) -> dict[str, Any]:
    """The values of a job by dotted key, with those that it lacks as it is older than they are.

    So a job that was stored before there was a key equals the same job composed now.
    """
    return {**ADDED, **flat(job)}
