"""Reads rank and world size as torchrun, torch elastic or srun give them; refuses what cannot be.

Nothing here imports torch, whose own search for the store takes as long as its timeout.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from ninefold.errors import ConfigError, Failure, PeerError
from ninefold.process import until
from ninefold.ranks import slurm

COUNTS = {"RANK": "WORLD_SIZE", "LOCAL_RANK": "LOCAL_WORLD_SIZE"}  # each is below the other
STORE_TIMEOUT = 5  # seconds; the agent serves its store before it starts this process


class Met:
    """What `launch.meeting` tells a run once its ranks have met: how to form the process group.

    init_method: the URL through which torch forms the process group; None: the environment says.
    cores: the CPUs that the ranks of this host may use together; None: those that this one may.
    """

    init_method: str | None = None
    cores: int | None = None


@dataclass(frozen=True)
class Ranks:
    """Which of a run's processes this one is.

    rank: among all of them, world_size of them.
    local_rank: among those on this host, local_world_size of them.
    node: the number of this host.
    attempt: how often the processes were restarted.
    launched: whether a launcher started this process; it is alone if not.
    host: name of this host.
    run: what tells the store of this run from that of another on the same port.
    address: name or IP of the host on which the store of all ranks is.
    ports: its port, or several of which rank 0 takes the first that is free.
    serves: whether rank 0 serves that store; else it is there before the ranks are, as the one of
        torchrun's agent.
    init_method: the URL through which torch forms the process group; None: the environment says.
    """

    rank: int = 0
    world_size: int = 1
    local_rank: int = 0
    local_world_size: int = 1
    node: int = 0
    attempt: int = 0
    launched: bool = False
    host: str = field(default_factory=socket.gethostname)
    run: str = ""
    address: str = ""
    ports: tuple[int, ...] = ()
    serves: bool = False
    init_method: str | None = None


def found(environment: Mapping[str, str]) -> Ranks:
    """The ranks in `environment`, which torch elastic and torchrun set, or else srun.

    Raises ConfigError or ValueError where `problems` finds something.
    """
    if "RANK" not in environment and (task := slurm.task(environment)) is not None:
        return Ranks(
            rank=task.rank,
            world_size=task.size,
            local_rank=task.local_rank,
            local_world_size=task.local_size,
            node=task.node,
            launched=True,
            run=task.name,
            address=task.address,
            ports=task.ports,
            serves=True,
            init_method=Met.init_method,
        )
    ranks = Ranks(
        rank=int(environment.get("RANK", "0")),
        world_size=int(environment.get("WORLD_SIZE", "1")),
        local_rank=int(environment.get("LOCAL_RANK", "0")),
        local_world_size=int(environment.get("LOCAL_WORLD_SIZE", "1")),
        node=int(environment.get("GROUP_RANK", "0")),
        attempt=int(environment.get("TORCHELASTIC_RESTART_COUNT", "0")),
        launched="RANK" in environment,
        init_method=Met.init_method,
    )
    if "TORCHELASTIC_RUN_ID" not in environment:
        return ranks
    return replace(
        ranks,
        run=environment["TORCHELASTIC_RUN_ID"],
        address=environment.get("MASTER_ADDR", ""),
        ports=tuple(map(int, filter(None, [environment.get("MASTER_PORT")]))),
        # TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1 keeps the agent's to itself.
        serves=environment.get("TORCHELASTIC_USE_AGENT_STORE") != "True",
    )


def started_by() -> str:
    """The launcher that started this process and others, one for each rank: torchrun or srun.

    Empty if this is the only process of its command, which starts those of its runs itself.
    """
    if "TORCHELASTIC_RUN_ID" in os.environ:
        return "torchrun"
    return "srun" if "RANK" not in os.environ and slurm.in_a_task(os.environ) else ""


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
        slurm.task(environment)
    except ConfigError as failure:
        return [failure]
    return []


def require_store(ranks: Ranks) -> None:
    """Check that something answers where torchrun's agent serves its store.

    Raises ConfigError if the host has no address, PeerError if nothing answers.
    """
    host, (port,) = ranks.address, ranks.ports
    said = ""

    def answers() -> bool:
        nonlocal said
        try:
            socket.create_connection((host, port), timeout=STORE_TIMEOUT).close()
            return True
        except (socket.gaierror, UnicodeError) as error:
            raise ConfigError(
                "MASTER_ADDR",
                host,
                f"the host has no address; {error!s}; give torchrun a --rdzv-endpoint that "
                "every host can resolve",
            ) from error
        except OSError as error:
            said = error.strerror or str(error)
            if isinstance(error, ConnectionRefusedError):
                raise no_answer(ranks, said) from error
            return False

    if not until(answers, STORE_TIMEOUT, look=0.2):
        raise no_answer(ranks, said)


def no_answer(ranks: Ranks, reason: str) -> PeerError:
    """The failure of a process that cannot reach the store of all ranks."""
    return PeerError(
        "MASTER_PORT",
        ", ".join(map(str, ranks.ports)),
        f"no store answers on {ranks.address}; {reason}; see that "
        f"{started_by() or 'the launcher'} runs there and that this host may connect to it",
    )


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
