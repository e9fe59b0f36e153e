"""Reads what Slurm tells a process: which task of srun it is, and the restarts of its job."""

from __future__ import annotations

import random
import re
from collections.abc import Mapping

from ninefold.errors import ConfigError, error_text

SPECIAL_STEPS = 2**32 - 16  # Slurm's numbers of the steps of sbatch and salloc begin here
PORTS = range(20000, 32768)  # below those that the system hands out by itself
OF_A_TASK = ("SLURM_STEP_NUM_TASKS", "SLURM_PROCID", "SLURM_LOCALID", "SLURM_NODEID")


def variables(environment: Mapping[str, str]) -> dict[str, str]:
    """The variables of torch's env:// for one of several tasks of srun; empty for another process.

    Rank 0 serves the store, on the first host: on MASTER_PORT if it is set, else on a port that all
    tasks of this step compute alike, and those of another step differently.
    Raises ConfigError if one of Slurm's variables is missing.
    """
    if not in_a_task(environment):
        return {}
    step = environment["SLURM_STEP_ID"]
    try:
        size, rank, local_rank, host = (int(environment[name]) for name in OF_A_TASK)
        local_size = tasks_per_node(environment["SLURM_STEP_TASKS_PER_NODE"])[host]
        first = first_host(environment["SLURM_STEP_NODELIST"])
        given_port = int(environment.get("MASTER_PORT") or 0)
    except (KeyError, ValueError, IndexError) as error:
        wrong = f"not the environment of a task of srun ({error_text(error)})"
        allowed = f"it sets {', '.join(OF_A_TASK)} and others"
        do = "start it with srun, or unset SLURM_STEP_ID"
        raise ConfigError("SLURM_STEP_ID", step, wrong, allowed, do) from error
    job = environment.get("SLURM_JOB_ID", "0")
    port = random.Random(f"{job}.{step}.{restarts(environment)}").choice(PORTS)
    found = {
        "RANK": rank,
        "WORLD_SIZE": size,
        "LOCAL_RANK": local_rank,
        "LOCAL_WORLD_SIZE": local_size,
        "GROUP_RANK": host,
        "MASTER_ADDR": environment.get("MASTER_ADDR") or first,
        "MASTER_PORT": given_port or port,
    }
    return {name: str(value) for name, value in found.items()}


def in_a_task(environment: Mapping[str, str]) -> bool:
    """Whether this process belongs to one of several tasks that srun started."""
    size = _number(environment.get("SLURM_STEP_NUM_TASKS"))
    step = _number(environment.get("SLURM_STEP_ID"))
    return size is not None and size > 1 and step is not None and step < SPECIAL_STEPS


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


def _number(text: str | None) -> int | None:
    return int(text) if text and text.isascii() and text.isdigit() else None
