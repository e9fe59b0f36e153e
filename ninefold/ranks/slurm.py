"""Reads what Slurm tells a process: which task of srun it is, and the restarts of its job."""

from __future__ import annotations

import os
import random
import re
from collections.abc import Mapping

from ninefold.errors import ConfigError

SPECIAL_STEPS = 2**32 - 16  # Slurm's numbers of the steps of sbatch and salloc begin here
PORTS = range(20000, 32768)  # below those that the system hands out by itself
OF_A_TASK = ("SLURM_PROCID", "SLURM_LOCALID", "SLURM_NODEID")


def variables(environment: Mapping[str, str]) -> dict[str, str]:
    """The variables of torch's env:// for one of several tasks of srun; empty for another process.

    Rank 0 serves the store, on the first host: on MASTER_PORT if it is set, else on a port that all
    tasks of this step compute alike, and those of another step differently.
    Raises ConfigError if Slurm's variables do not fit together.
    """
    if not in_a_task(environment):
        return {}
    size = int(environment["SLURM_STEP_NUM_TASKS"])
    numbers = [_number(environment.get(name)) for name in OF_A_TASK]
    for name, number in zip(OF_A_TASK, numbers, strict=True):
        if number is None:
            raise _wrong(environment, name, "a whole number is expected")
    rank, local_rank, host = (number or 0 for number in numbers)
    each = tasks_per_node(environment.get("SLURM_STEP_TASKS_PER_NODE", ""))
    hosts = environment.get("SLURM_STEP_NODELIST", "")
    if not hosts:
        raise _wrong(environment, "SLURM_STEP_NODELIST", "a list of hosts is expected")
    if sum(each) != size or host >= len(each) or local_rank >= each[host] or rank >= size:
        raise _wrong(
            environment, "SLURM_STEP_TASKS_PER_NODE", f"it has tasks {rank} of {size}, host {host}"
        )
    job, step = environment.get("SLURM_JOB_ID", "0"), environment["SLURM_STEP_ID"]
    port = random.Random(f"{job}.{step}.{restarts(environment)}").choice(PORTS)
    found = {
        "RANK": rank,
        "WORLD_SIZE": size,
        "LOCAL_RANK": local_rank,
        "LOCAL_WORLD_SIZE": each[host],
        "GROUP_RANK": host,
        "MASTER_ADDR": environment.get("MASTER_ADDR") or first_host(hosts),
        "MASTER_PORT": environment.get("MASTER_PORT") or port,
    }
    return {name: str(value) for name, value in found.items()}


def in_a_task(environment: Mapping[str, str]) -> bool:
    """Whether this process belongs to one of several tasks that srun started."""
    size = _number(environment.get("SLURM_STEP_NUM_TASKS"))
    # A shell with a terminal, from `srun --pty`, is one task, whatever was asked for.
    # Steps that are started from it inherit the variable.
    shell = "SLURM_PTY_PORT" in environment and _has_terminal()
    return size is not None and size > 1 and not shell and _in_a_step(environment)


def restarts(environment: Mapping[str, str]) -> int:
    """How often this job was requeued and started again."""
    return _number(environment.get("SLURM_RESTART_COUNT")) or 0


def first_host(nodes: str) -> str:
    """The first host of a list of Slurm's: rack1n07 of `rack1n[07-09,12],login1`."""
    first = re.match(r"(?:[^,\[]|\[[^\]]*\])*", nodes)
    return re.sub(r"\[([^\],-]*)[^\]]*\]", r"\1", first[0] if first else "")


def tasks_per_node(text: str) -> list[int]:
    """The tasks of each node: [2, 2, 1] for `2(x2),1`. Empty if it reads otherwise."""
    found: list[int] = []
    for part in text.split(","):
        match = re.fullmatch(r"(\d+)(?:\(x(\d+)\))?", part)
        if match is None:
            return []
        found += [int(match[1])] * int(match[2] or 1)
    return found


def _has_terminal() -> bool:
    """Whether this process has a controlling terminal."""
    try:
        os.close(os.open("/dev/tty", os.O_RDONLY | os.O_NOCTTY))
    except OSError:
        return False
    return True


def _in_a_step(environment: Mapping[str, str]) -> bool:
    step = _number(environment.get("SLURM_STEP_ID"))
    return step is not None and step < SPECIAL_STEPS


def _number(text: str | None) -> int | None:
    return int(text) if text and text.isascii() and text.isdigit() else None


def _wrong(environment: Mapping[str, str], name: str, allowed: str) -> ConfigError:
    return ConfigError(
        name,
        environment.get(name, "unset"),
        f"not the environment of a task of srun; {allowed}; start it with srun, or unset "
        "SLURM_STEP_ID",
    )
