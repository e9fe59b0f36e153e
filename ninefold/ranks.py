"""The environment that torchrun gives a process: whether it is whole, and leads anywhere.

Nothing here imports torch, whose own look for the store takes as long as it is allowed to.
"""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Mapping

from ninefold.errors import ConfigError, Failure, PeerError

COUNTS = {"RANK": "WORLD_SIZE", "LOCAL_RANK": "LOCAL_WORLD_SIZE"}  # each below the other
ANSWERS = 5  # seconds that the store of an agent, which was there first, may take to answer


def under_torchrun() -> bool:
    """Whether torchrun (or whatever sets its variables) started this process."""
    return "TORCHELASTIC_RUN_ID" in os.environ


def problems(environment: Mapping[str, str]) -> list[Failure]:
    """What is wrong with the environment that this process was started in.

    A run that took half of it for the whole would wait for peers that nobody starts, or train
    alone what was meant for many.
    """
    if "TORCHELASTIC_RUN_ID" not in environment:
        return _leftovers(environment)
    names = (*COUNTS, *COUNTS.values(), "MASTER_PORT", "MASTER_ADDR")
    if unset := [name for name in names if not environment.get(name)]:
        return [_wrong(unset[0], "unset", f"torchrun sets {', '.join(names)}")]
    found: list[Failure] = []
    numbers: dict[str, int] = {}
    for name in names[:-1]:
        value = environment[name]
        if value.isascii() and value.isdigit():
            numbers[name] = int(value)
        else:
            found.append(_wrong(name, value, "a whole number is expected"))
    for rank, size in COUNTS.items():
        if {rank, size} <= numbers.keys() and numbers[rank] >= numbers[size]:
            found.append(_wrong(rank, numbers[rank], f"it is below {size}={numbers[size]}"))
    if not 0 < numbers.get("MASTER_PORT", 1) < 2**16:
        found.append(_wrong("MASTER_PORT", numbers["MASTER_PORT"], "1 to 65535 are ports"))
    return found


def _wrong(name: str, value: object, allowed: str) -> ConfigError:
    return ConfigError(
        name, value, "not the environment of a process of torchrun",
        allowed, "start it with torchrun, or unset TORCHELASTIC_RUN_ID",
    )  # fmt: skip


def _leftovers(environment: Mapping[str, str]) -> list[Failure]:
    """Ranks that something else than torchrun has given out."""
    alone = {"RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "1", "LOCAL_WORLD_SIZE": "1"}
    for name, value in alone.items():
        if environment.get(name, value) != value:
            return [ConfigError(
                name, environment[name], "set, but torchrun did not start this process",
                "a run starts its processes itself, or torchrun does",
                f"start it with torchrun, or unset {name}",
            )]  # fmt: skip
    return []


def require_store() -> None:
    """See that somebody answers where torchrun's agent serves its store.

    Raises ConfigError if the host has no address, PeerError if nobody answers.
    """
    host, port = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
    deadline = time.monotonic() + ANSWERS
    while True:
        try:
            socket.create_connection((host, port), timeout=ANSWERS).close()
            return
        except (socket.gaierror, UnicodeError) as error:
            raise ConfigError(
                "MASTER_ADDR", host, "the host has no address", str(error),
                "give torchrun a --rdzv-endpoint that every host can resolve",
            ) from error  # fmt: skip
        except OSError as error:
            refused = isinstance(error, ConnectionRefusedError)
            if refused or time.monotonic() > deadline:
                raise no_answer(error.strerror or str(error)) from error
            time.sleep(0.2)


def no_answer(reason: str) -> PeerError:
    """What a process says that cannot reach the store of torchrun's agent."""
    return PeerError(
        "MASTER_PORT", os.environ["MASTER_PORT"],
        f"no store answers on {os.environ['MASTER_ADDR']}", reason,
        "see that torchrun runs there and that this host may connect to it",
    )  # fmt: skip
