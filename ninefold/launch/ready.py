"""Make a job ready to be run in a folder: mistakes, data, values `auto`, limits of the machine."""

from __future__ import annotations

import os
import resource
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

from ninefold.checkpoint.manifest import has_checkpoint
from ninefold.config.data import prepare_weights
from ninefold.config.job import Asked, Checked, Settled, check, settle
from ninefold.config.resume import AUTO, holds_a_run
from ninefold.errors import ConfigError, Failure, Refused, ResourceError, resource_failure
from ninefold.files import require_regular
from ninefold.launch import forkserver
from ninefold.ranks import found, slurm, started_by

MIN_MEMORY = 4 * 2**30  # bytes of address space; the least that trained the digits was 3.4 GiB
# Each process is handed three descriptors for each of them at most, and four others, and Linux
# passes on 253 at a time (SCM_MAX_FD).
MAX_PROCESSES = (253 - 4) // 3


def ready(asked: Asked, folder: Path) -> Settled:
    """The job that is asked for, if it can be run in `folder`. Raises Refused, Failure.

    With resume=auto it is that of an unfinished run next to `folder`, if there is one; after
    Slurm has requeued the command, or torchrun restarted it, that of the run in `folder`.
    """
    if asked.resume is None and not asked.evaluates:
        asked = _taken_up_again(asked, folder)
    _require(_resumed_in_a_sweep(asked, folder))
    whole = checked(asked)
    start_importing(whole)  # while this process looks at the data
    job = settle(whole, folder.parent)
    if job.resume is None and not job.evaluates:
        prepare_weights(whole.resolved["init"], job.resolved["model"]["net"])
    if job.resume is None and not asked.in_sweep:
        _require(_occupied(asked, folder))
    if _forks(whole):
        _require(_too_many_processes(job.processes))
    return job


def ready_or_failure(asked: Asked, folder: Path) -> Settled:
    """As `ready`, but raises only the first of several failures. Raises Failure."""
    try:
        return ready(asked, folder)
    except Refused as refused:
        raise refused.failures[0] from None


def checked(asked: Asked) -> Checked:
    """The job, checked as far as is possible without data or devices. Raises Refused."""
    job = check(asked)
    _require(_too_little_memory())
    return job


def _require(failures: list[Failure]) -> None:
    if failures:
        raise Refused(failures)


def _taken_up_again(asked: Asked, folder: Path) -> Asked:
    """After a requeue or restart, whose command is the same: resume the run in `folder`.

    If none was saved there, after a restart the newest unfinished one beside it, as resume=auto.
    """
    restarted = found(os.environ).attempt > 0
    if not restarted and not slurm.restarts(os.environ):
        return asked
    if not has_checkpoint(folder):
        return replace(asked, resume=AUTO) if restarted else asked
    print(f"the job was {'restarted' if restarted else 'requeued'}: resuming {folder}", flush=True)
    return replace(asked, resume=str(folder))


def start_importing(job: Checked) -> None:
    """Start the forkserver, which imports torch and what else a worker needs, if it forks any."""
    if _forks(job):
        forkserver.start(job.resolved)


def _forks(job: Checked) -> bool:
    """Whether this command forks the job's processes."""
    return not started_by() and not job.resolved["launch"]["inline"]


def _too_little_memory() -> list[Failure]:
    """A failure if the limit on this process's address space is too low to import torch.

    Libraries that run out of it end the process without a readable error.
    """
    limit, _ = resource.getrlimit(resource.RLIMIT_AS)
    if limit in (resource.RLIM_INFINITY, -1) or limit >= MIN_MEMORY:
        return []
    return [
        ResourceError(
            "memory",
            f"{limit // 2**20} MiB",
            "the limit of this shell is too low; importing torch alone takes "
            f"{MIN_MEMORY // 2**20} MiB of address space; raise it with ulimit -v",
        )
    ]


def _too_many_processes(count: int) -> list[Failure]:
    """Why so many processes cannot be started by one command on this host."""
    if count > MAX_PROCESSES:
        return [
            ConfigError(
                "parallel.processes",
                count,
                f"too many for one command; it starts {MAX_PROCESSES} on a host at most; lower it, "
                "or start the ranks with torchrun or srun",
            )
        ]
    for name, what, least, command in (
        ("RLIMIT_NOFILE", "files", 16 + 5 * count, "ulimit -n"),
        ("RLIMIT_NPROC", "processes", 3 + 3 * count, "ulimit -u"),  # and threads
    ):
        soft, _ = resource.getrlimit(getattr(resource, name))
        holds = name != "RLIMIT_NPROC" or os.geteuid()  # that one does not hold for root
        if holds and soft not in (resource.RLIM_INFINITY, -1) and soft < least:
            return [
                ResourceError(
                    name,
                    soft,
                    f"too few {what} are allowed here; a run of {count} process(es) takes {least} "
                    f"at least; raise it with {command}, or lower parallel.processes",
                )
            ]
    return []


def _resumed_in_a_sweep(job: Asked, folder: Path) -> list[Failure]:
    """What is wrong with `resume` in a sweep. A resumed study resumes runs in their own folders."""
    if job.resume is None or not job.in_sweep or job.resume == str(folder):
        return []
    return [
        ConfigError(
            "resume", job.resume, "a sweep makes new runs; one run can be resumed; leave out -m"
        )
    ]


def _occupied(job: Asked, folder: Path) -> list[Failure]:
    """A failure if `folder` holds a run, which a new run or an evaluation may not replace.

    And if Hydra would follow a link to write its files there.
    """
    try:
        for name in ("config.yaml", "hydra.yaml", "overrides.yaml"):
            with suppress(FileNotFoundError):
                require_regular(os.lstat(path := folder / ".hydra" / name), path)
    except OSError as error:
        found = resource_failure(error, "a run writes it", "choose another hydra.run.dir")
        return [found]
    if not holds_a_run(folder):
        return []
    do = "choose another" if job.evaluates else f"choose another, or resume it with resume={folder}"
    return [
        ConfigError(
            "hydra.run.dir", folder, f"there is a run in it; each has a folder of its own; {do}"
        )
    ]
