"""The command `python -m ninefold.pack dataset=NAME ...`: fill a dataset's cache on disk.

Its arguments are those of train.py. It prints the folder, in which dataset.cache=disk finds the
decoded examples. Everything is imported late: the processes that decode import this module too.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ninefold.config.job import Asked


def main(arguments: Sequence[str] | None = None) -> int:
    """Pack the dataset that the arguments choose, and print the folder; returns the exit code."""
    from ninefold.launch.command import carried_out

    arguments = sys.argv[1:] if arguments is None else arguments
    return carried_out(_pack, arguments, "packing was stopped")


def _pack(arguments: Sequence[str]) -> None:
    """Raises Failure, and Refused for problems of the configuration."""
    from ninefold.config.job import problems, unchecked
    from ninefold.errors import Refused

    job = _job(arguments)
    wrong = [
        failure
        for failure in problems(job)
        if failure.field.partition(".")[0] in ("dataset", "threads")
    ]
    if wrong:
        raise Refused(wrong)
    files = unchecked(job).pack()
    assert files is not None
    print(os.path.dirname(files["meta.json"]), flush=True)


def _job(arguments: Sequence[str]) -> Asked:
    """The job of these arguments, with its cache on disk. Raises ConfigError."""
    from ninefold.config.job import asked
    from ninefold.errors import ConfigError
    from ninefold.launch.command import composed
    from ninefold.places import typed_as

    example = f"{typed_as('pack')} dataset=folder dataset.root=FOLDER"
    config = composed("train", arguments, example)
    dataset = config.dataset
    if "cache" not in dataset:
        raise ConfigError(
            "dataset",
            config.hydra.runtime.choices.get("dataset"),
            "it has no cache, as it decodes nothing; those with the keys cache and cache_dir are "
            "allowed; choose another, such as dataset=folder",
        )
    if dataset.cache not in (None, "disk"):
        raise ConfigError(
            "dataset.cache",
            dataset.cache,
            "this command fills a cache on disk; null and disk are allowed; leave it out",
        )
    dataset.cache = "disk"
    return asked(config, config.hydra)


if __name__ == "__main__":
    from ninefold.process import exit_with

    exit_with(main)
