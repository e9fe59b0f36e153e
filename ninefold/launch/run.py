"""Run a job that is ready: start its processes, and record a failure in its folder."""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ninefold.config import overrides
from ninefold.config.job import Settled
from ninefold.config.spec import RunSpec
from ninefold.errors import Failure, Interrupted, Preempted, Refused
from ninefold.launch import failures
from ninefold.launch.failures import Raised
from ninefold.launch.run_folder import exclusive, record, stopped
from ninefold.ranks import started_by, tell_agent
from ninefold.result import Result

CONCURRENT = "It may have run at the same time as other runs, which affects its times."


@dataclass(frozen=True)
class Outcome:
    """How a run ended.

    code: the exit code of a command with this run alone.
    failures: why it failed; empty if it did not.
    result: its result.json; None for an evaluation and for a run that failed.
    """

    code: int
    failures: tuple[Failure, ...] = ()
    result: Result | None = None

    @property
    def stopped(self) -> bool:
        """Whether a signal ended it, which ends a sweep too."""
        return any(isinstance(failure, Interrupted | Preempted) for failure in self.failures)


def run_job(
    job: Settled,
    folder: Path,
    started: float,
    *,
    concurrent: bool = False,
    quiet: bool = False,
    require_undisturbed: Callable[[], None] = lambda: None,
) -> Outcome:
    """Run `job` in `folder` and wait for its end. A failure is recorded in its result.json.

    started: time.time() when it began to be made ready.
    concurrent: other runs may use the machine at the same time.
    quiet: what the run prints goes to its log only.
    require_undisturbed: raises KeyboardInterrupt if this process received a signal.
    """
    before, in_sweep = Result.of_end(folder), job.asked.in_sweep

    def finished() -> Result | None:
        """What it came to, if it ended before the signal: that was too late to stop anything."""
        ended = Result.of_end(folder)
        return None if in_sweep or ended == before else ended

    try:
        require_undisturbed()
        spec = spec_of(
            job,
            folder,
            started=started,
            notes=[CONCURRENT] * concurrent,
            shares_process=job.resolved["launch"]["inline"] and in_sweep,
            quiet=quiet,
        )
        with exclusive(folder, rank=0, fresh=job.resume is None):
            pass  # told before a process starts; the worker locks it for the run
        start(spec, job)
        return Outcome(0, result=None if job.evaluates else Result.read(folder))
    except KeyboardInterrupt:
        if result := finished():
            return Outcome(0, result=result)
        raise
    except Exception as error:
        require_undisturbed()  # the error may be a consequence of the signal
        outcome = outcome_of(error)
    if outcome.stopped and (result := finished()):
        return Outcome(0, result=result)
    if not job.evaluates:
        record(outcome.failures, job.choices, job.resolved, job.variant, folder, started)
    return outcome


def announce(folder: object) -> None:
    """Tell who waits at a terminal that a command works: importing torch takes seconds."""
    if os.isatty(0) and os.isatty(2):
        print(f"starting, in {folder}", file=sys.stderr, flush=True)


def outcome_of(error: Exception, argv: Sequence[str] = ()) -> Outcome:
    """How a run ends that raised `error`. argv: the arguments of its command."""
    failures = error.failures if isinstance(error, Refused) else (failure_of(error, argv),)
    return Outcome(failures[0].code, failures)


def spec_of(job: Settled, folder: Path, **more: Any) -> RunSpec:
    """What the processes of `job` read to run it in `folder`. more: fields of RunSpec."""
    given = {
        "command": "evaluate" if job.evaluates else "train",
        "job_yaml": job.text,
        "folder": folder,
        "started": time.time(),
        "resume": job.resume is not None,
        "overrides": job.variant,
        "overrides_yaml": job.overrides_yaml,
        "grace": job.resolved["launch"]["grace"],
        "cache": job.cache,
        "timeout": job.resolved["launch"]["timeout"],
    }
    return RunSpec(**{**given, **more})


def start(spec: RunSpec, job: Settled) -> None:
    """Run `spec` as one of several ranks, here, or in worker processes. Raises Failure."""
    settings = job.resolved["launch"]
    # Imported here, because they import torch.
    if started_by():
        from ninefold.launch import per_rank

        per_rank.lead(spec)
    elif settings["inline"]:
        from ninefold.launch import worker

        try:
            worker.run_spec(spec, inline=True)
        except KeyboardInterrupt:
            raise stopped(signal.SIGINT, spec.folder) from None
    else:
        from ninefold.launch import workers

        workers.run_workers(spec, job.processes, settings["max_restarts"])


def follow() -> int:
    """A rank other than 0 of several: wait for the job, run it, return the exit code."""
    from ninefold.launch import per_rank

    try:
        return per_rank.follow()
    except Failure as failure:
        tell_agent(failure)
        print(failure, file=sys.stderr, flush=True)
        return failure.code


def failure_of(error: Exception, argv: Sequence[str] = (), command: str = "train") -> Failure:
    """Convert an error of the launcher to a Failure. argv: the arguments of `command`."""
    of_hydra = overrides.of_hydra(error, argv, command)
    return failures.failure_of(Raised(error, of_hydra=of_hydra))
