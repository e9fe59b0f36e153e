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

COUNTS = {"RANK": "WORLD_SIZE", "LOCAL_RANK": "LOCAL_WORLD_SIZE"}  # each is below the other


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
    names = (*COUNTS, *COUNTS.values(), "MASTER_PORT", "MASTER_ADDR")
    if unset := [name for name in names if not environment.get(name)]:
        return [_wrong(unset[0], "unset", f"torchrun sets {', '.join(names)}")]
    wrong: list[Failure] = []
    numbers: dict[str, int] = {}
    for name in names[:-1]:
        value = environment[name]
        if value.isascii() and value.isdigit():
            numbers[name] = int(value)
        else:
            wrong.append(_wrong(name, value, "a whole number is expected"))
    for rank, size in COUNTS.items():
        if {rank, size} <= numbers.keys() and numbers[rank] >= numbers[size]:
            wrong.append(_wrong(rank, numbers[rank], f"it is below {size}={numbers[size]}"))
    if not 0 < numbers.get("MASTER_PORT", 1) < 2**16:
        wrong.append(_wrong("MASTER_PORT", numbers["MASTER_PORT"], "1 to 65535 are ports"))
    return wrong


def _wrong(name: str, value: object, allowed: str) -> ConfigError:
    return ConfigError(
        name,
        value,
        f"not the environment of a process of torchrun; {allowed}; start it with torchrun, or "
        "unset TORCHELASTIC_RUN_ID",
    )


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


def network_problem(ranks: Ranks, environment: Mapping[str, str], gpus: bool) -> Failure | None:
    """Why gloo on other hosts could not connect to this process; None if nothing is in the way.

    gpus: whether processes talk through NCCL, which looks for a network by itself.
    """
    wanted = environment.get("GLOO_SOCKET_IFNAME")
    if wanted:
        there = [name for _, name in socket.if_nameindex()]
        missing = [name for name in wanted.split(",") if name not in there]
        if not missing:
            return None
        return ConfigError(
            "GLOO_SOCKET_IFNAME",
            wanted,
            f"no interface {missing[0]} on {ranks.host}; found {', '.join(there)}; set it on that "
            "host",
        )
    if gpus or ranks.world_size <= ranks.local_world_size:
        return None
    try:
        address = str(socket.getaddrinfo(ranks.host, None)[0][4][0])
    except OSError:
        address = "no address"
    if address not in ("no address", "::1") and not address.startswith("127."):
        return None
    return ConfigError(
        "host",
        ranks.host,
        f"its name leads to {address}, where no other host can reach it; gloo listens where the "
        "name of its host leads; set GLOO_SOCKET_IFNAME, or correct /etc/hosts there",
    )
