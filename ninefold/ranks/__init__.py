"""Reads rank and world size as torchrun, torch elastic or srun give them; refuses what cannot be.

Nothing here imports torch.
"""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from ninefold.errors import ConfigError
from ninefold.files import write_json
from ninefold.ranks import slurm


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

    Raises ConfigError where `require_launcher` does, ValueError if one is no number.
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


def require_launcher(environment: Mapping[str, str]) -> None:
    """Raise ConfigError if something else than torchrun or srun has set ranks.

    Each of several processes would train a run of its own.
    """
    if "TORCHELASTIC_RUN_ID" in environment:
        return
    alone = {"RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "1", "LOCAL_WORLD_SIZE": "1"}
    for name, value in alone.items():
        if environment.get(name, value) != value:
            wrong = "set, but torchrun did not start this process"
            allowed = "a run starts its processes itself, or torchrun does"
            do = f"start it with torchrun, or unset {name}"
            raise ConfigError(name, environment[name], wrong, allowed, do)
    slurm.variables(environment)


def tell_agent(line: object) -> None:
    """Give torchrun's agent, if there is one, the cause for its report of the first failure."""
    if file := os.environ.get("TORCHELASTIC_ERROR_FILE"):
        details = {"py_callstack": str(line), "timestamp": str(int(time.time()))}
        with suppress(OSError):
            write_json(Path(file), {"message": {"message": "", "extraInfo": details}})
