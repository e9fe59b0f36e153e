"""The command `python -m ninefold.pack dataset=NAME ...`: fill a dataset's cache on disk.

Its arguments are those of train.py. It prints the folder, in which dataset.cache=disk finds the
decoded examples. Everything is imported late: the processes that decode import this module too.
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Sequence
from types import FrameType
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ninefold.config.job import TrainJob


def main(arguments: Sequence[str] | None = None) -> int:
    """Pack the dataset that the arguments choose, and print the folder; returns the exit code."""
    from ninefold import signals
    from ninefold.launch.run import failure_of

    arguments = sys.argv[1:] if arguments is None else list(arguments)
    for number in signals.heeded():
        signal.signal(number, _interrupt)
    try:
        job = _job(arguments)
        failures = [
            failure
            for failure in job.problems()
            if failure.field.partition(".")[0] in ("dataset", "threads")
        ]
        if not failures:
            files = job.pack()
            assert files is not None
            print(os.path.dirname(files["meta.json"]), flush=True)
            return 0
    except KeyboardInterrupt as interrupt:
        number = interrupt.args[0] if interrupt.args else signal.SIGINT
        name = signal.Signals(number).name
        what, found = "packing was stopped", "nothing is left of what was packed"
        failures = [signals.failure(number)("signal", name, what, found, "start again")]
    except Exception as error:
        failures = [failure_of(error, arguments)]
    for failure in failures:
        print(failure, file=sys.stderr, flush=True)
    return failures[0].code


def _job(arguments: Sequence[str]) -> TrainJob:
    """The job of these arguments, with its cache on disk. Raises ConfigError."""
    from hydra import compose, initialize_config_dir

    from ninefold.config import resolvers
    from ninefold.config.job import ROOT, TrainJob
    from ninefold.errors import ConfigError

    arguments, folder = _config_folder(arguments)
    if odd := [argument for argument in arguments if argument.startswith("-")]:
        raise ConfigError(
            "arguments",
            odd[0],
            "no such option",
            "--config-dir FOLDER and overrides of train.py are allowed",
            "type python -m ninefold.pack dataset=folder dataset.root=FOLDER",
        )
    resolvers.register()
    with initialize_config_dir(str(ROOT / "conf"), version_base="1.3", job_name="train"):
        config = compose(
            "train",
            [*arguments, *([f"hydra.searchpath=[file://{folder}]"] if folder else [])],
            return_hydra_config=True,
        )
    dataset = config.dataset
    if "cache" not in dataset:
        raise ConfigError(
            "dataset",
            config.hydra.runtime.choices.get("dataset"),
            "it has no cache, as it decodes nothing",
            "datasets with the keys cache, cache_rate and cache_dir are allowed",
            "choose another, such as dataset=folder",
        )
    if dataset.cache not in (None, "disk"):
        raise ConfigError(
            "dataset.cache",
            dataset.cache,
            "this command fills a cache on disk",
            "null and disk are allowed",
            "leave it out",
        )
    dataset.cache = "disk"
    return TrainJob(config, config.hydra)


def _config_folder(arguments: Sequence[str]) -> tuple[list[str], str | None]:
    """The arguments without --config-dir, and its folder."""
    rest, folder, words = [], None, iter(arguments)
    for word in words:
        if word == "--config-dir":
            folder = next(words, None)
        elif word.startswith("--config-dir="):
            folder = word.partition("=")[2]
        else:
            rest.append(word)
    return rest, None if folder is None else os.path.abspath(folder)


def _interrupt(number: int, frame: FrameType | None) -> None:
    raise KeyboardInterrupt(number)


if __name__ == "__main__":
    sys.exit(main())
