"""What the hook in a command's processes says of them, and the socket that it comes through."""

from __future__ import annotations

import json
import socket
from collections.abc import Mapping
from typing import Annotated, Any, TypeAlias, TypedDict

import msgspec
from msgspec import Meta

LARGEST = 1 << 26  # bytes that it says at a time
LONGEST_WAIT = 1e8  # seconds: a socket takes no more than its clock counts


class Precision(TypedDict):
    """What a command's first steps compute in.

    computes: a dtype; None: not known. framework: whose choice it is; None: a plain loop's.
    called: whether a network of torch.nn was.
    """

    computes: str | None
    framework: str | None
    called: bool


class Script(Precision):
    """What a script has of what may make it faster, as its first step shows.

    loader, optimizer, network: FILE:LINE where they are made or first called, several with commas;
    None: in a package. workers: of the loader that it reads; iterable: whether that has an
    IterableDataset. threads: that compute. fused: whether its optimizers are; None: no one could
    be. convolutions, compiled: whether it has them. cuda: whether it uses a GPU. world: processes
    that train together.
    """

    loader: str | None
    optimizer: str | None
    network: str | None
    workers: int | None
    threads: int | None
    fused: bool | None
    convolutions: bool
    compiled: bool
    iterable: bool
    cuda: bool
    world: int


class Hello(TypedDict):
    """What a rank says of itself.

    prefix: of its Python's environment. gpus: UUIDs of those that it uses. unfinished: who still
    computed what its first step had returned. averages: the class that averages gradients, if one
    was called.
    """

    rank: Annotated[int, Meta(ge=0)]
    world: Annotated[int, Meta(ge=1)]
    torch: str | None
    prefix: str
    cuda: bool
    gpus: list[str]
    unfinished: str | None
    modules: list[str]
    precision: Precision | None
    averages: str | None
    script: Script | None


# What networks got in a step: the different numbers of examples, ascending, and all elements.
Batch: TypeAlias = tuple[list[int], int]


class Answer(TypedDict):
    """What a rank says at the end of a turn.

    workers: processes that it has started. waits: whether its GPUs had done nearly all of the last
    step when the host had queued it. taken: of each of the first steps, at the end of the first
    turn. memory: its peak, in bytes. unscaled: whether its first steps computed in float16 without
    a GradScaler. waited: seconds of each step of the warm-up in which it waited for other ranks'
    gradients; None: not seen.
    """

    seconds: list[Annotated[float, Meta(gt=0)]]
    marks: dict[int, str]
    steps: int
    optimizers: int
    workers: int
    waits: bool
    taken: list[Batch] | None
    memory: int
    unscaled: bool
    waited: list[float | None]


class Connection:
    """Messages as lines of JSON over a socket."""

    def __init__(self, found: socket.socket) -> None:
        self._socket, self._lines = found, found.makefile("rb")

    def send(self, message: Mapping[str, Any]) -> None:
        self._socket.sendall(json.dumps(message).encode() + b"\n")

    def receive(self, seconds: float, kind: type) -> Any:
        """The next message, of a kind. Raises TimeoutError, msgspec.DecodeError; EOFError where the
        other end has closed, or says too much.
        """
        self._socket.settimeout(min(seconds, LONGEST_WAIT))
        line = self._lines.readline(LARGEST)
        if not line.endswith(b"\n"):
            raise EOFError
        return msgspec.json.decode(line, type=kind)

    def close(self) -> None:
        self._lines.close()
        self._socket.close()
