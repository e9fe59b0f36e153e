"""Calls a function on several ranks of this machine, in processes forked from this one."""

import os
from collections.abc import Callable, Mapping
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any

import torch
import torch._dynamo  # which the first optimizer of a process imports, in a second
from torch.distributed import TCPStore

from tests.forks import exit_code, fork

SECONDS = 60  # that a process waits for its peers
PORT = 2  # bytes


def on_ranks(count: int, function: Callable[[], Any], folder: Path) -> list[Any]:
    """What `function` returned on each of `count` ranks: tensors and plain containers.

    folder: for the results. It is called once the environment says which rank it is on.
    """
    reading, writing = os.pipe()

    def run(rank: int) -> None:
        os.close(writing)  # else it would wait for the port of a parent that has failed
        port = int.from_bytes(os.read(reading, PORT), "big")
        os.environ |= environment(rank, count, port)
        torch.save(function(), folder / f"rank{rank}")

    children = [fork(partial(run, rank)) for rank in range(count)]
    # Only now: the store's thread looks up names, and a process that was forked while it held
    # the resolver's lock waited for that lock for ever.
    with os.fdopen(reading, "rb"), os.fdopen(writing, "wb", buffering=0) as ports:
        store = TCPStore("127.0.0.1", 0, is_master=True, timeout=timedelta(seconds=SECONDS))
        ports.write(count * store.port.to_bytes(PORT, "big"))
    codes = [exit_code(child) for child in children]
    assert codes == [0] * count, codes
    return [torch.load(folder / f"rank{rank}", weights_only=False) for rank in range(count)]


def environment(rank: int, count: int, port: int) -> Mapping[str, str]:
    """What a launcher sets for a process; the store is this process's."""
    return {
        "RANK": str(rank),
        "WORLD_SIZE": str(count),
        "LOCAL_RANK": str(rank),
        "LOCAL_WORLD_SIZE": str(count),
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(port),
        "TORCHELASTIC_USE_AGENT_STORE": "True",
    }
