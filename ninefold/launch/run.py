"""One run of a command: its job is frozen into its folder and run, and a failure recorded there."""

from __future__ import annotations

import signal
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from hydra.conf import HydraConf
from hydra.types import RunMode
from omegaconf import DictConfig

from ninefold import signals
from ninefold.config.job import Job
from ninefold.config.order import Order
from ninefold.errors import Busy, ConfigError, Failure, Interrupted, Preempted
from ninefold.files import write_durably
from ninefold.launch import forkserver
from ninefold.launch.preflight import examine
from ninefold.launch.run_folder import exclusive
from ninefold.launch.session import (
    SESSION,
    failure_of,
    first_to_report,
    report,
    require_undisturbed,
)
from ninefold.ranks import under_torchrun
from ninefold.result import Result

BESIDE_OTHERS = "It may have run beside others: its times are those of a machine that it shared."


def execute(task: str, config: DictConfig, hydra: HydraConf, folder: Path) -> bool:
    """Freeze the job into `folder` and run it. Reports a failure; returns whether it was fine."""
    started, before, job = time.time(), Result.of_end(folder), None
    try:
        require_undisturbed()
        checked, SESSION.checked = SESSION.checked, None
        job = checked or Job(config, hydra)
        failures = _resumes_in_a_sweep(job, config, hydra, folder)
        if not failures and checked is None:
            failures = examine(job)
        if not failures:
            order = Order(
                task, freeze(job, folder), folder, started, resume=job.resumes,
                overrides=job.variant, notes=job.notes + ([] if SESSION.here else [BESIDE_OTHERS]),
                grace=job.values["launch"]["grace"],
                shares=job.values["launch"]["inline"] and hydra.mode == RunMode.MULTIRUN,
            )  # fmt: skip
            start(order, job)
            return True
    except Exception as error:
        require_undisturbed()  # or it may be a consequence
        failures = [failure_of(error)]
    stopped = isinstance(failures[0], Interrupted | Preempted)
    if stopped and hydra.mode == RunMode.RUN and Result.of_end(folder) not in (None, before):
        return True  # the signal came too late to stop anything
    SESSION.codes.append(failures[0].code)
    if first_to_report(failures[0]):
        report(failures)
    if task == "train" and not isinstance(failures[0], Busy):
        # A resumed run is what its folder says, not what the defaults of this command are.
        choices, values = (job.choices, job.values) if job else (hydra.runtime.choices, config)
        record(failures, choices, values, folder, started)
    if stopped:
        raise SystemExit(failures[0].code)  # it ends a sweep, not one cell of it
    return False


def _resumes_in_a_sweep(
    job: Job, config: DictConfig, hydra: HydraConf, folder: Path
) -> list[Failure]:
    """What is wrong with `resume` where there are several runs.

    A study that goes on has such of its runs resumed as were cut short, where they are.
    """
    if not job.resumes or hydra.mode != RunMode.MULTIRUN or job.resume == str(folder):
        return []
    return [ConfigError(
        "resume", config.resume, "a sweep makes new runs", "one run can be resumed", "leave out -m",
    )]  # fmt: skip


def freeze(job: Job, folder: Path) -> str:
    """Write `job` to config.yaml in `folder`; returns what was written. Raises Busy."""
    text = job.text()
    with exclusive(folder, rank=0):
        write_durably(folder / "config.yaml", text.encode())
    return text


def start(order: Order, job: Job) -> None:
    """Run `order` where this command runs its jobs. Raises Failure."""
    from ninefold.launch import elastic, torchrun, worker  # here, because they import torch

    if under_torchrun():
        signals.follow_parent()
        torchrun.hand_out(order)
        worker.run(order)
    elif job.values["launch"]["inline"]:
        try:
            worker.run(order, inline=True)
        except KeyboardInterrupt:
            raise elastic.stopped(signal.SIGINT, order.folder) from None
    else:
        forkserver.require_semaphores()
        elastic.launch(order, job.processes, job.values["launch"]["max_restarts"])


def follow() -> int:
    """A rank other than 0 under torchrun: wait for the job, run it, return the exit code."""
    from ninefold.launch import torchrun, worker

    signals.follow_parent()
    try:
        order = torchrun.receive()
        if isinstance(order, int):
            return order
        worker.run(order)
    except Failure as failure:
        if first_to_report(failure):
            report([failure])
        return failure.code
    return 0


def record(
    failures: Sequence[Failure],
    choices: Mapping[Any, Any],
    values: Mapping[Any, Any],
    folder: Path,
    started: float,
) -> None:
    """Write the result.json of a run that failed, unless it has ended well."""
    if Result.of_end(folder):
        return
    try:
        Result(
            status=failures[0].status,
            exit_code=failures[0].code,
            error="\n".join(map(str, failures)),
            study=choices.get("experiments"),
            parallel=choices.get("parallel"),
            amp=choices.get("amp"),
            dataset=choices.get("dataset"),
            model=choices.get("model"),
            seed=values.get("seed"),
            batch_size=values.get("batch_size"),
            total_seconds=time.time() - started,
        ).write(folder)
    except OSError:
        return  # why it failed is said already, and one line is enough
