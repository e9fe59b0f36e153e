"""Make a job ready to be run in a folder: mistakes, data, values `auto`, limits of the machine."""

from __future__ import annotations

import os
import resource
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

from ninefold.checkpoint.manifest import has_checkpoint
from ninefold.config.data import prepare_weights
from ninefold.config.job import Asked, Checked, Settled, check
from ninefold.config.resume import AUTO, holds_a_run, may_vary, unfinished
from ninefold.errors import (
    CheckpointError,
    ConfigError,
    Failure,
    FolderInUse,
    Refused,
    ResourceError,
    resource_failure,
)
from ninefold.files import require_regular
from ninefold.launch import forkserver
from ninefold.launch.run_folder import exclusive, occupied
from ninefold.machine import cores
from ninefold.numbers import counted
from ninefold.ranks import found, slurm, started_by
from ninefold.types import MAX_PROCESSES

PROCESSES_OF_A_CORE = 64  # or threads that read: with more a host does little but switch
STOPPED_OF_A_CORE = 256  # in a study of times, where all but one configuration's are stopped


def ready(asked: Asked, folder: Path) -> Settled:
    """The job that is asked for, if it can be run in `folder`. Raises Refused, Failure.

    With resume=auto it is that of an unfinished run next to `folder`, if there is one; after
    Slurm has requeued the command, or torchrun restarted it, that of the run in `folder`.
    """
    if asked.resume in (None, AUTO) and not asked.evaluates:
        asked = _taken_up_again(asked, folder)
    if asked.resume == AUTO:
        asked = _newest_unfinished(asked, folder.parent)
    whole = check(asked)
    start_importing(whole)  # while this process looks at the data
    job = whole.settle()
    if job.resume is None and not job.evaluates:
        prepare_weights(whole.resolved["init"], job.resolved["model"]["net"])
    require_few_processes([job])
    if job.resume is None and not asked.in_sweep and (failures := _occupied(asked, folder)):
        raise Refused(failures)
    return job


def ready_or_failure(asked: Asked, folder: Path) -> Settled:
    """As `ready`, but raises only the first of several failures. Raises Failure."""
    try:
        return ready(asked, folder)
    except Refused as refused:
        raise refused.failures[0] from None


def _taken_up_again(asked: Asked, folder: Path) -> Asked:
    """After a requeue or restart, whose command is the same: resume the run in `folder`.

    After a restart whose command names no folder: the newest unfinished run, as resume=auto.
    """
    restarted = found(os.environ).attempt > 0
    if not restarted and not slurm.restarts(os.environ):
        return asked
    if not has_checkpoint(folder):
        named = asked.names_folder or folder.exists()  # by a file of conf/
        return replace(asked, resume=AUTO) if restarted and not named else asked
    print(f"the job was {'restarted' if restarted else 'requeued'}: resuming {folder}", flush=True)
    return replace(asked, resume=str(folder))


def _newest_unfinished(asked: Asked, root: Path) -> Asked:
    """With resume=auto: resume the newest run in `root` that is of this job and has not ended.

    It is a new run if there is none. Raises Refused if something is wrong with the command.
    """
    check(replace(asked, resume=None))
    unread: list[Path] = []
    for run in unfinished(root):
        try:
            same = not asked.differences(run, may_vary())
        except CheckpointError:
            unread.append(run)
            continue  # it cannot be a run of this job
        if same:
            print(f"resume=auto: resuming {run}", flush=True)
            return replace(asked, resume=str(run))
    if unread:
        print(f"resume=auto: {len(unread)} cannot be read; resume={unread[0]} says why")
    print(f"resume=auto: no unfinished run of this job under {root}, starting one")
    return replace(asked, resume=None)


def start_importing(job: Checked) -> None:
    """Start the forkserver, which imports torch and what else a worker needs, if it forks any."""
    if not started_by() and not job.resolved["launch"]["inline"]:
        forkserver.start(job.resolved)


def require_few_processes(jobs: Sequence[Settled]) -> None:
    """Raise ConfigError if a job has more processes or loader workers than this host may have.

    If several jobs together have, which a study keeps alive at once, raise ResourceError: start
    fewer. Under torchrun or srun, which start the processes, only the workers are limited.
    """
    launcher, several = started_by(), len(jobs) > 1
    counts = [found(os.environ).local_world_size if launcher else job.processes for job in jobs]
    given = [job.resolved["loader"]["workers"] for job in jobs]
    readers = sum(n * int(w) for n, w in zip(counts, given, strict=True) if w != "auto")
    kind = ResourceError if several else ConfigError
    of_host = (STOPPED_OF_A_CORE if several else PROCESSES_OF_A_CORE) * (cores() or 1)
    files, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    most = of_host if several else MAX_PROCESSES
    most = most if files == resource.RLIM_INFINITY else min(most, files // 6)
    if (count := sum(counts)) > most and not launcher:
        wrong, allowed = "too many for one command", f"it starts {most} here at most"
        do = "lower it, raise ulimit -n, or start the ranks with torchrun or srun"
        raise kind("parallel.processes", count, wrong, allowed, do)
    if readers > of_host:
        wrong = f"{counted(count, 'process', 'processes')} with {readers} together"
        allowed = f"{of_host} are allowed on these cores"
        raise kind("loader.workers", given[-1], wrong, allowed, "lower it")


def _occupied(job: Asked, folder: Path) -> list[Failure]:
    """A failure if `folder` holds a run, which a new run or an evaluation may not replace.

    And if one trains there, or Hydra would follow a link to write its files.
    """
    try:
        for name in ("config.yaml", "hydra.yaml", "overrides.yaml"):
            with suppress(FileNotFoundError):
                require_regular(os.lstat(path := folder / ".hydra" / name), path)
    except OSError as error:
        found = resource_failure(error, "a run writes it", "choose another hydra.run.dir")
        return [found]
    if (folder / ".lock").exists():
        try:
            with exclusive(folder, rank=0, field="hydra.run.dir"):
                pass
        except FolderInUse as used:
            return [used]
    if not holds_a_run(folder):
        return []
    return [occupied(folder, "choose another" if job.evaluates else "")]
