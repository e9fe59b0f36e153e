"""`find=batch_size` and `find=lr`: looks for a value of a job, in new processes, without a run."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

import yaml
from hydra.types import RunMode
from omegaconf import DictConfig, OmegaConf, open_dict

from ninefold.config.job import TrainJob
from ninefold.config.spec import RunSpec
from ninefold.errors import (
    ConfigError,
    Failure,
    Interrupted,
    NumericsError,
    Preempted,
    ResourceError,
)
from ninefold.files import read_json, write_json
from ninefold.launch.run import start
from ninefold.ranks import started_by
from ninefold.study import max_batch
from ninefold.study.plan import key_and_value
from ninefold.study.screen import Announcements

SMALLEST, LARGEST = 2.0**-126, 3.4e38  # of a learning rate: of the normal float32 numbers
RATES = "lr.json"  # what find=lr leaves in its folder, besides lr.png


def problems(config: DictConfig) -> list[Failure]:
    """What keeps this command from finding what it is asked for."""
    what = config.get("find")
    if what is None:
        return []
    if (against := against_one_new_job(config, "one run")) is not None:
        wrong, do = against
    elif config.launch.inline:
        wrong, do = "launch.inline=true has one process for everything", "leave it out"
    else:
        return _rates_at_odds(config) if what == "lr" else []
    return [ConfigError("find", what, f"{wrong}; it looks for a value of one new job; {do}")]


def against_one_new_job(config: DictConfig, started: str) -> tuple[str, str] | None:
    """Why this command is not one new job that it starts itself, and what to do; None if it is.

    started: what another launcher starts, in words.
    """
    if config.hydra.mode == RunMode.MULTIRUN:
        return "a sweep has many jobs", "leave out -m and values with commas"
    if config.resume is not None:
        return f"resume={config.resume} is given", "leave out resume"
    if launcher := started_by():
        return f"{launcher} starts {started}", f"leave out {launcher}: python train.py ..."
    return None


def _rates_at_odds(config: DictConfig) -> list[Failure]:
    low, high = config.find_lr.low, config.find_lr.high
    if not all(isinstance(rate, int | float) for rate in (low, high)):
        return []  # what is no number is refused with the other keys
    wrong = [key for key in ("low", "high") if not SMALLEST <= config.find_lr[key] <= LARGEST]
    if wrong:
        return [
            ConfigError(
                f"find_lr.{key}",
                config.find_lr[key],
                f"float32, in which networks train, has no such number; {SMALLEST:g} to "
                f"{LARGEST:g} are allowed; correct find_lr.{key}",
            )
            for key in wrong
        ]
    if low < high:
        return []
    return [
        ConfigError(
            "find_lr.low",
            low,
            f"find_lr.high is {high:g}; a lower learning rate than that is allowed; correct one "
            "of them",
        )
    ]


def find(
    what: str,
    job: TrainJob,
    config: DictConfig,
    folder: Path,
) -> tuple[Sequence[str], str]:
    """Find `what` for a checked job; returns lines about it, and the override that sets it.

    config: that it was composed of. folder: for what is found. Raises Failure.
    """
    try:
        if what == "lr":
            return _learning_rate(job, folder)
        return _batch_size(config, folder)
    except (Interrupted, Preempted) as failure:
        raise type(failure)(
            "signal", failure.value, "the search was stopped", "nothing is kept", "start it again"
        ) from failure


def _learning_rate(job: TrainJob, folder: Path) -> tuple[list[str], str]:
    rates = job.command_keys["find_lr"]
    spec = RunSpec(
        command="find_lr",
        job=job.text(),
        folder=folder,
        started=time.time(),
        grace=job.values["launch"]["grace"],
        cache=job.cache,
        rates=(rates["low"], rates["high"], rates["steps"]),
    )
    start(spec, job)
    found = read_json(folder / RATES)
    if None in (found["steepest"], found["suggestion"]):  # as JSON has no other
        raise NumericsError(
            "find",
            "lr",
            f"what its losses say is not finite; they are in {folder / RATES}; try a smaller "
            "range of learning rates: find_lr.low and find_lr.high",
        )
    lines = [f"learning rate {found['steepest']:.2g}: there the loss falls fastest"]
    if found["diverges"] is None:
        lines.append(f"the loss does not diverge up to {rates['high']:g}")
    else:
        tenth = found["diverges"] / 10
        lines.append(f"learning rate {tenth:.2g}: a tenth of where the loss diverges")
    lines.append(f"picture {folder / 'lr.png'}")
    return lines, f"optimizer.lr={found['suggestion']:.2g}"


def _batch_size(config: DictConfig, folder: Path) -> tuple[list[str], str]:
    def job_with(*instead: str) -> TrainJob:
        changed = config.copy()
        with open_dict(changed):
            for key, value in map(key_and_value, instead):
                OmegaConf.update(changed, key, yaml.safe_load(value))
        return TrainJob(changed, config.hydra)

    largest = max_batch.of_job(job_with, "batch_size", folder, Announcements(), quiet=True)
    if largest.status == "failed" or largest.batch_size is None:
        raise ResourceError(
            "find",
            "batch_size",
            "no batch was found" if largest.status != "failed" else "the search did not end well",
            largest.why.partition("; ")[0].replace("error: ", ""),
            f"see the run.log files in {folder}",
        )
    write_json(folder / "batch_size.json", asdict(largest))
    return [f"batch_size  {largest}"], f"batch_size={largest.batch_size}"
