"""Stored configurations: older ones get the keys that were added since, where they are read."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import Any

from ninefold.config.schema import GROUPS
from ninefold.files import flat

# Keys that older stored runs lack, with what was done before there was such a key.
ADDED: dict[str, Any] = {
    "init": None,
    "init_partial": False,
    "init_without": None,
    "freeze": None,
    "ema_warmup": False,
    "clip_grad_norm": None,
    "clip_grad_value": None,
    "checkpoint_activations": [],
    "cudnn_benchmark": False,
    "graph": False,
    "checkpoint.format": "whole",
    "augment.mixup": 0,
    "augment.cutmix": 0,
    "augment.randaugment": None,
    "augment.randaugment_ops": 2,
    "augment.erasing": 0,
    "loader.workers": 0,
    "loader.share": 0.25,
    "loader.pinned": "auto",
    "clock.probe": 0,
    "clock.ceiling": 0,
    "clock.link": 0,
    "launch.dry": False,
    "parallel.devices": None,
    "parallel.loss_in_forward": True,
    "dataset.val": 0,
    "dataset.exif": False,
    "dataset.targets": None,
    "dataset.cache": None,
    "dataset.cache_dir": "~/.cache/ninefold",
    "dataset.resident": "auto",
    "dataset.thread_safe": False,
    "task.loss": None,
    "task.label_smoothing": 0,
    "model.output": None,
    "optimizer.groups": None,
    "scheduler.per": "epoch",
    "scheduler.warmup": 0,
    "scheduler.metric": "loss",
}


def upgrade(stored: Mapping[str, Any]) -> dict[str, Any]:
    """Bring a stored configuration up to date: add defaults of newer keys, drop keys that are gone.

    Newer keys of groups are not added: not every option has them, and what reads one has a default.
    """
    found = copy.deepcopy(dict(stored))
    for name, value in ADDED.items():
        section, _, key = name.rpartition(".")
        if section == "augment":  # a whole section that is newer than some runs
            found.setdefault(section, {})
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
