"""Reads rank and world size as torchrun, torch elastic or srun give them; refuses what cannot be.

Nothing here imports torch.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Mapping
from dataclasses import dataclass, field

from ninefold.errors import ConfigError, Failure
from ninefold.ranks import slurm

NAMES = ("RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "MASTER_PORT", "MASTER_ADDR")


@dataclass(frozen=True)
class Ranks:
    """Which of a run's processes this one is.

    rank: among all of them, world_size of them.
    local_rank: among those on this host, local_world_size of them.
    node: the number of this host.
    attempt: how often the processes were restarted.
    host: name of this host.
    """

    rank: int = 0
    world_size: int = 1
    local_rank: int = 0
    local_world_size: int = 1
    node: int = 0
    attempt: int = 0
    host: str = field(default_factory=socket.gethostname)


def found(environment: Mapping[str, str]) -> Ranks:
    """The ranks in `environment`, which torch elastic and torchrun set, or else srun.

    Raises ConfigError or ValueError where `problems` finds something.
    """
    given = {**environment, **variables(environment)}
    return Ranks(
        rank=int(given.get("RANK", "0")),
        world_size=int(given.get("WORLD_SIZE", "1")),
        local_rank=int(given.get("LOCAL_RANK", "0")),
        local_world_size=int(given.get("LOCAL_WORLD_SIZE", "1")),
        node=int(given.get("GROUP_RANK", "0")),
        attempt=int(given.get("TORCHELASTIC_RESTART_COUNT", "0")),
    )


def variables(environment: Mapping[str, str]) -> dict[str, str]:
    """What srun says to one of several tasks, as the variables of torch's env://; else none.

    Raises ConfigError if its variables do not fit together.
    """
    return {} if "TORCHELASTIC_RUN_ID" in environment else slurm.variables(environment)


def started_by() -> str:
    """The launcher that started this process and others, one for each rank: torchrun or srun.

    Empty if this is the only process of its command, which starts those of its runs itself.
    """
    if "TORCHELASTIC_RUN_ID" in os.environ:
        return "torchrun"
    return "srun" if slurm.in_a_task(os.environ) else ""


def problems(environment: Mapping[str, str]) -> list[Failure]:
    """What is wrong with the environment that this process was started in.

    With an incomplete one a run would wait for peers that nobody starts, or each of several
    processes would train a run of its own.
    """
    if "TORCHELASTIC_RUN_ID" not in environment:
        return _leftovers(environment) or _of_srun(environment)
    for name in NAMES:
        value = environment.get(name, "")
        if not value or (name != "MASTER_ADDR" and not value.isdecimal()):
            return [
                ConfigError(
                    name,
                    value or "unset",
                    "not the environment of a process of torchrun; it sets "
                    f"{', '.join(NAMES)}; start it with torchrun, or unset TORCHELASTIC_RUN_ID",
                )
            ]
    return []


def _leftovers(environment: Mapping[str, str]) -> list[Failure]:
    """Ranks that something else than torchrun has set."""
    alone = {"RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "1", "LOCAL_WORLD_SIZE": "1"}
    for name, value in alone.items():
        if environment.get(name, value) != value:
            return [
                ConfigError(
                    name,
                    environment[name],
                    "set, but torchrun did not start this process; a run starts its processes "
                    f"itself, or torchrun does; start it with torchrun, or unset {name}",
                )
            ]
    return []


def _of_srun(environment: Mapping[str, str]) -> list[Failure]:
    try:
        slurm.variables(environment)
    except ConfigError as failure:
        return [failure]
    return []
