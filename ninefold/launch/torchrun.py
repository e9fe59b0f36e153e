"""Under torchrun: rank 0 composes, the others are handed the frozen job through its store.

Imported late, because it imports torch: see ninefold.launch.run.
"""

from __future__ import annotations

import functools
import json
import os
import threading
import time
import uuid
from dataclasses import asdict
from datetime import timedelta
from pathlib import Path

import torch.distributed as dist

from ninefold import ranks
from ninefold.config.spec import RunSpec
from ninefold.errors import ConfigError, Failure, PeerError

PATIENCE = timedelta(minutes=15)  # for rank 0 to compose and to fetch a dataset


def store() -> dist.Store:
    """The store that torchrun's agent serves, seen by this attempt alone.

    Raises ConfigError if there is none to share, PeerError if none answers.
    """
    found = _found()
    if isinstance(found, Failure):
        raise found
    return found


@functools.cache
def _found() -> dist.Store | Failure:
    """The store, or why there is none: a process asks for it again to agree on who reports that.

    It was there before this process, so that it must answer at once; an order may take long.
    """
    if os.environ.get("TORCHELASTIC_USE_AGENT_STORE") != "True":
        return ConfigError(
            "TORCHELASTIC_USE_AGENT_STORE", os.environ.get("TORCHELASTIC_USE_AGENT_STORE"),
            "torchrun does not share its store", "ranks receive their job through it",
            "unset TORCH_DISABLE_SHARE_RDZV_TCP_STORE",
        )  # fmt: skip
    answers: list[dist.Store | Failure] = []
    # A store that is none, as on the port of another service, may keep its client for ever.
    asking = threading.Thread(target=lambda: answers.append(_connected()), daemon=True)
    asking.start()
    asking.join(ranks.ANSWERS + 1)
    return answers[0] if answers else ranks.no_answer("something else listens there")


def _connected() -> dist.Store | Failure:
    address, port = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
    try:
        client = dist.TCPStore(
            address, port, is_master=False, timeout=timedelta(seconds=ranks.ANSWERS)
        )
        token = uuid.uuid4().hex
        client.set(f"ninefold/{token}", token)
        if client.get(f"ninefold/{token}") != token.encode():
            return ranks.no_answer("something else listens there")
    except (dist.DistError, RuntimeError, ValueError) as error:
        return ranks.no_answer(str(error).partition("\n")[0])
    client.set_timeout(PATIENCE)
    attempt = os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")
    return dist.PrefixStore(f"ninefold/{attempt}", client)


def hand_out(spec: RunSpec) -> None:
    """Rank 0: give `spec` to the other ranks."""
    store().set("order", json.dumps({**asdict(spec), "folder": str(spec.folder)}))


def dismiss(code: int) -> None:
    """Rank 0: tell ranks that still wait for an order to leave with exit code `code`."""
    store().compare_set("order", "", json.dumps(code))


def receive() -> RunSpec | int:
    """Any other rank: the order, or the exit code to leave with."""
    try:
        content = json.loads(store().get("order"))
    except (dist.DistError, RuntimeError) as error:
        raise PeerError(
            "rank", os.environ["RANK"], f"no order came from rank 0 ({str(error)[:120]})",
            f"it waits {PATIENCE} for one", "see what rank 0 says",
        ) from error  # fmt: skip
    if isinstance(content, int):
        return content
    return RunSpec(**{**content, "folder": Path(content["folder"])})


def first_to_report(failure: Failure) -> bool:
    """Whether no other rank has reported this run's failure yet.

    A rank that only misses another waits, so that the one that knows the cause goes first.
    """
    if isinstance(failure, PeerError):
        time.sleep(2)
    return bool(store().add("failed", 1) == 1)
