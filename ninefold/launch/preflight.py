"""Checks of a job before it runs, and the early start of the processes that import torch."""

from __future__ import annotations

import resource

from ninefold.config.job import Job
from ninefold.errors import Failure, ResourceError
from ninefold.launch import forkserver
from ninefold.ranks import under_torchrun

LEAST_MEMORY = 4 * 2**30  # bytes of address space; the least that trained the digits was 3.4


def examine(job: Job) -> list[Failure]:
    """What is wrong with `job`; with nothing found, it is settled and ready to run."""
    if found := problems(job):
        return found
    start_importing(job)  # while this process looks at the data
    try:
        job.settle()
    except Failure as failure:
        return [failure]
    return []


def problems(job: Job) -> list[Failure]:
    """What is wrong with `job` that shows without a look at data or devices."""
    return job.problems() or _too_little_memory()


def start_importing(job: Job) -> None:
    """Have torch, and what else a worker needs, imported in a process of its own."""
    if not under_torchrun() and not job.values["launch"]["inline"]:
        forkserver.start(job.values)


def ready(job: Job) -> Job:
    """`job`, settled. Raises Failure."""
    if found := examine(job):
        raise found[0]
    return job


def _too_little_memory() -> list[Failure]:
    """Whether the address space that this process may have is too small to import torch in.

    Libraries that run out of it end the process in ways of their own, with no line to read.
    """
    limit, _ = resource.getrlimit(resource.RLIMIT_AS)
    if limit in (resource.RLIM_INFINITY, -1) or limit >= LEAST_MEMORY:
        return []
    return [
        ResourceError(
            "memory",
            f"{limit // 2**20} MB",
            "the limit of this shell is too low",
            f"importing torch alone takes {LEAST_MEMORY // 2**20} MB of address space",
            "raise it with ulimit -v",
        )
    ]
