"""The number of void in masks, which a dataset writes and a task leaves out."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ninefold.errors import ConfigError, Failure

TASK = "ninefold.task.segmentation.Segmentation"


def problems(job: Mapping[str, Any]) -> list[Failure]:
    """A failure if the task would take the dataset's number of void for a class."""
    dataset, task = job.get("dataset"), job.get("task")
    if not isinstance(dataset, Mapping) or not isinstance(task, Mapping):
        return []
    void, ignored = dataset.get("ignore"), task.get("ignore")
    if task.get("_target_") != TASK or void is None or void == ignored:
        return []
    return [
        ConfigError(
            "task.ignore",
            "null" if ignored is None else ignored,
            f"masks have the number {void} where pixels do not count, as dataset.ignore={void}; "
            "the same number is allowed; leave task.ignore out, and set dataset.ignore",
        )
    ]
