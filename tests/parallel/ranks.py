"""Calls a function on several ranks of this machine, in processes forked from this one."""

from __future__ import annotations

import os
import sys
import traceback
from collections.abc import Callable, Mapping
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch._dynamo  # which the first optimizer of a process imports, in a second
import torch.distributed.fsdp
import torch.distributed.tensor
from torch.distributed import TCPStore

SECONDS = 60  # that a process waits for its peers


def on_ranks(count: int, function: Callable[[], Any], folder: Path) -> list[Any]:
    """What `function` returned on each of `count` ranks: tensors and plain containers.

    folder: for the results. It is called once the environment says which rank it is on.
    """
    store = TCPStore("127.0.0.1", 0, is_master=True, timeout=timedelta(seconds=SECONDS))
    children = []
    for rank in range(count):
        if child := os.fork():
            children.append(child)
            continue
        code = 1
        try:
            os.environ |= environment(rank, count, store.port)
            torch.set_num_threads(1)
            torch.save(function(), folder / f"rank{rank}")
            code = 0
        except BaseException:
            traceback.print_exc()
        finally:
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(code)
    codes = [os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children]
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
