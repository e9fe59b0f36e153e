"""`find=batch_size` and `find=lr`: looks for a value of a job, in new processes, without a run."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

import yaml
from omegaconf import DictConfig, OmegaConf, open_dict

from ninefold.config.job import Asked, Settled, asked
from ninefold.config.parse import key_and_value
from ninefold.errors import (
    Interrupted,
    NumericsError,
    Preempted,
    ResourceError,
)
from ninefold.files import read_json, write_json
from ninefold.launch.run import spec_of, start
from ninefold.study import max_batch
from ninefold.study.screen import Announcements

RATES = "lr.json"  # what find=lr leaves in its folder, besides lr.png


def find(
    what: str,
    job: Settled,
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


def _learning_rate(job: Settled, folder: Path) -> tuple[list[str], str]:
    rates = job.asked.of_command["find_lr"]
    given = rates["low"], rates["high"], rates["steps"]
    start(spec_of(job, folder, command="find_lr", rates=given), job)
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
    def job_with(*instead: str) -> Asked:
        changed = config.copy()
        with open_dict(changed):
            for key, value in map(key_and_value, instead):
                OmegaConf.update(changed, key, yaml.safe_load(value))
        return asked(changed, config.hydra)

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
