"""Run a job: check it, write it to its run folder, start its processes, record a failure."""

from __future__ import annotations

import os
import resource
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any, NoReturn

from ninefold import process, ranks
from ninefold.checkpoint.manifest import has_checkpoint
from ninefold.config import needs, overrides, own, untrusted
from ninefold.config.job import Asked, Checked, Settled, check, settle
from ninefold.config.resume import holds_a_run
from ninefold.config.spec import RunSpec
from ninefold.errors import (
    Busy,
    ConfigError,
    Failure,
    Refused,
    ResourceError,
    resource_failure,
)
from ninefold.files import read_text, require_regular, write_durably
from ninefold.launch import Launcher, Outcome, failures, forkserver, limits
from ninefold.launch.concurrent import seat, takes_one_gpu
from ninefold.launch.failures import Raised
from ninefold.launch.run_folder import exclusive, record
from ninefold.process import OWN_END
from ninefold.ranks import slurm, started_by
from ninefold.result import Result

LEAST_MEMORY = 4 * 2**30  # bytes of address space; the least that trained the digits was 3.4 GiB
DRY = "dry"  # the command of a spec that one process carries out, whatever the job's number is
CONCURRENT = "It may have run at the same time as other runs, which affects its times."


def require_environment() -> None:
    """Exit with a line for each problem of the variables that torchrun or srun sets.

    Each rank prints it: there may be no store through which to agree on one.
    """
    os.environ.setdefault("TORCH_CPP_LOG_LEVEL", "ERROR")  # else torch's sockets print more
    problems = ranks.problems(os.environ)
    me = ranks.found(os.environ) if not problems else None
    if me is not None and started_by() and not me.serves:
        try:
            ranks.require_store(me)
        except Failure as failure:
            problems = [failure]
    if problems:
        print("\n".join(map(str, problems)), file=sys.stderr, flush=True)
        os._exit(problems[0].code)


def run(
    job: Asked | Settled,
    folder: Path,
    *,
    concurrent: bool = False,
    quiet: bool = False,
    require_undisturbed: Callable[[], None] = lambda: None,
) -> Outcome:
    """Run `job` in `folder` and wait for its end. A failure is recorded in its result.json.

    So is what is wrong with a job that is not settled yet.
    concurrent: other runs may use the machine at the same time.
    quiet: what the run prints goes to its log only.
    require_undisturbed: raises KeyboardInterrupt if this process received a signal.
    """
    started, before = time.time(), Result.of_end(folder)
    in_sweep = (job if isinstance(job, Asked) else job.asked).in_sweep
    try:
        require_undisturbed()
        if isinstance(job, Asked):
            job = ready(job, folder)
        spec = spec_of(
            job,
            folder,
            started=started,
            notes=job.notes + [CONCURRENT] * concurrent,
            shares_process=job.resolved["launch"]["inline"] and in_sweep,
            quiet=quiet,
            seat=seat() if concurrent and takes_one_gpu(job.stored) else None,
        )
        write_job(spec)
        start(spec, job)
        return Outcome(0, result=None if job.evaluates else Result.read(folder))
    except Refused as refused:
        failures = list(refused.failures)
    except Exception as error:
        require_undisturbed()  # the error may be a consequence of the signal
        failures = [failure_of(error)]
    if started_by():
        failures = [settled(failures[0]), *failures[1:]]
    outcome = Outcome(failures[0].code, tuple(failures))
    ended = Result.of_end(folder)
    if outcome.stopped and not in_sweep and ended not in (None, before):
        return Outcome(0, result=ended)  # the signal came too late to stop anything
    if not job.evaluates and not isinstance(failures[0], Busy):
        record(failures, job.choices, job.resolved, folder, started)
    return outcome


def spec_of(job: Settled, folder: Path, **more: Any) -> RunSpec:
    """What the processes of `job` read to run it in `folder`. more: fields of RunSpec."""
    given = {
        "command": job.asked.command,
        "job": job.text(),
        "folder": folder,
        "started": time.time(),
        "resume": job.resume is not None,
        "overrides": job.variant,
        "notes": job.notes,
        "grace": job.resolved["launch"]["grace"],
        "cache": job.cache,
        "timeout": job.resolved["launch"]["timeout"],
        "imports": own.searched,
    }
    return RunSpec(**{**given, **more})


def ready(asked: Asked, folder: Path) -> Settled:
    """The job that is asked for, if it can be run in `folder`. Raises Refused, Failure.

    With resume=auto it is that of an unfinished run next to `folder`, if there is one.
    """
    if slurm.restarts(os.environ) and asked.resume is None and not asked.evaluates:
        asked = _taken_up_again(asked, folder)
    _require(_resumed_in_a_sweep(asked, folder))
    found = checked(asked)
    start_importing(found)  # while this process looks at the data
    job = settle(found, folder.parent)
    if job.resume is None and not job.evaluates:
        needs.prepare_weights(job.resolved)
    if job.resume is None and not asked.in_sweep:
        _require(_occupied(asked, folder))
    if _forks(found) and not job.in_a_step and not job.resolved["launch"].get("dry"):
        _require(limits.problems(job.processes))
    if started_by():
        from ninefold.launch import per_rank  # late, because it imports torch

        per_rank.compare_data(job)
    return job


def checked(asked: Asked) -> Checked:
    """The job, with nothing wrong that is found without data or devices. Raises Refused."""
    job = check(asked)
    _require(_too_little_memory())
    return job


def _require(failures: list[Failure]) -> None:
    if failures:
        raise Refused(failures)


def _taken_up_again(asked: Asked, folder: Path) -> Asked:
    """After a requeue, whose command is the same: resume the run in `folder`, if one was saved."""
    if not has_checkpoint(folder):
        return asked
    print(f"the job was requeued: resuming {folder}", flush=True)
    return replace(asked, resume=str(folder))


def start_importing(job: Checked) -> None:
    """Start the forkserver, which imports torch and what else a worker needs, if it forks any."""
    if _forks(job):
        forkserver.start(job.resolved)


def _forks(job: Checked) -> bool:
    """Whether the job's processes are forked here, unless they are to be a step of srun."""
    settings = job.resolved["launch"]
    return not started_by() and not settings["inline"] and settings["engine"] != "srun"


def _too_little_memory() -> list[Failure]:
    """A failure if the limit on this process's address space is too low to import torch.

    Libraries that run out of it end the process without a readable error.
    """
    limit, _ = resource.getrlimit(resource.RLIMIT_AS)
    if limit in (resource.RLIM_INFINITY, -1) or limit >= LEAST_MEMORY:
        return []
    return [
        ResourceError(
            "memory",
            f"{limit // 2**20} MB",
            "the limit of this shell is too low; importing torch alone takes "
            f"{LEAST_MEMORY // 2**20} MB of address space; raise it with ulimit -v",
        )
    ]


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


def write_job(spec: RunSpec) -> None:
    """Write the job of `spec` to config.yaml in its folder, that of a run signed. Raises Busy."""
    with exclusive(spec.folder, rank=0):
        path = spec.folder / "config.yaml"
        if spec.command == "train":
            targets = untrusted.targets_in(untrusted.parse(spec.job)).values()
            before = read_text(path) if spec.resume else None
            own.sign(spec.folder, spec.job, targets, before)
        write_durably(path, spec.job.encode())


def start(spec: RunSpec, job: Settled) -> None:
    """Run `spec` with the launcher for this environment. Raises Failure."""
    # Imported here, because they import torch.
    from ninefold.launch.elastic import Elastic
    from ninefold.launch.inline import Inline
    from ninefold.launch.per_rank import PerRank
    from ninefold.launch.srun import Srun

    settings = job.resolved["launch"]
    launchers: tuple[type[Launcher], ...] = (PerRank, Inline, Srun, Elastic)
    launcher = next(kind for kind in launchers if kind.applies(settings, job.in_a_step))
    launcher(settings).run(spec, 1 if spec.command == DRY else job.processes)


def follow() -> int:
    """A rank other than 0 of several: wait for the job, run it, return the exit code."""
    from ninefold.launch.per_rank import PerRank

    try:
        return PerRank({}).follow()
    except Failure as failure:
        if first_to_report(failure):
            print(settled(failure), file=sys.stderr, flush=True)
        return settled(failure).code


def exit_process(code: int, patience: float = OWN_END) -> NoReturn:
    """Exit; as one of several ranks without cleanup, which might wait for peers that are gone.

    patience: seconds that what the user's code has left in this process may take to end.
    """
    if started_by():
        from ninefold.launch import per_rank

        with suppress(Failure):
            per_rank.release_store(code)
        with suppress(OSError):
            sys.stdout.flush()
        os._exit(code)
    process.exit_process(code, patience)


def settled(failure: Failure) -> Failure:
    """The failure that the run ends with on all ranks, if `failure` ends it on this one."""
    from ninefold.launch import per_rank

    return per_rank.settled(failure)


def first_to_report(failure: Failure) -> bool:
    """Whether this process prints `failure`: one rank of all does."""
    if not started_by():
        return True
    from ninefold.launch import per_rank

    return per_rank.first_to_report(failure)


def failure_of(error: Exception, argv: Sequence[str] = ()) -> Failure:
    """Convert an error of the launcher to a Failure. argv: the arguments of its command."""
    of_hydra = overrides.of_hydra(error, argv)
    return failures.failure_of(Raised(error, of_hydra=of_hydra))
