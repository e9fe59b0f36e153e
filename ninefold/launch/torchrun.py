"""Run a job in the processes that torchrun started: rank 0 sends it to the others.

Imported late, because it imports torch: see ninefold.launch.run.
"""

from __future__ import annotations

import functools
import json
import os
import threading
import time
import uuid
from collections.abc import Callable, Mapping
from dataclasses import asdict, replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch.distributed as dist

from ninefold import ranks, signals
from ninefold.config.data import fill_cache_of
from ninefold.config.spec import RunSpec
from ninefold.errors import ConfigError, Failure, PeerError
from ninefold.launch import Launcher, worker

TIMEOUT = timedelta(hours=6)  # for rank 0 to download a dataset and to decode it into a cache
KEY = "job"  # in the store: the RunSpec, or an exit code


class Torchrun(Launcher):
    """Launcher for processes that torchrun started, on one host or several."""

    @staticmethod
    def found(settings: Mapping[str, Any]) -> bool:
        return ranks.under_torchrun()

    def run(self, spec: RunSpec, processes: int) -> None:
        """On rank 0: send the job to the other ranks and run it here."""
        signals.follow_parent()
        store().set(KEY, json.dumps({**asdict(spec), "folder": str(spec.folder)}))
        share_cache(spec, lambda: spec.cache)
        worker.run(spec)

    def follow(self) -> int:
        """On any other rank: wait for the job and run it, or return the exit code to exit with."""
        signals.follow_parent()
        received = receive()
        if isinstance(received, int):
            return received
        worker.run(replace(received, cache=cache_of_this_host(received)))
        return 0


def store() -> dist.Store:
    """The store that torchrun's agent serves, with keys of this attempt alone.

    Raises ConfigError if it is not shared, PeerError if nothing answers.
    """
    connected = _connection()
    if isinstance(connected, Failure):
        raise connected
    return connected


@functools.cache
def _connection() -> dist.Store | Failure:
    """The store, or the failure to connect to it, which is needed again to agree on who prints it.

    The agent serves it before this process starts, so it must answer at once; the job may take
    longer.
    """
    if os.environ.get("TORCHELASTIC_USE_AGENT_STORE") != "True":
        return ConfigError(
            "TORCHELASTIC_USE_AGENT_STORE",
            os.environ.get("TORCHELASTIC_USE_AGENT_STORE"),
            "torchrun does not share its store",
            "ranks receive their job through it",
            "unset TORCH_DISABLE_SHARE_RDZV_TCP_STORE",
        )
    answers: list[dist.Store | Failure] = []
    # Another service on that port may keep a client waiting forever.
    asking = threading.Thread(target=lambda: answers.append(_connect()), daemon=True)
    asking.start()
    asking.join(ranks.STORE_TIMEOUT + 1)
    return answers[0] if answers else ranks.no_answer("something else listens there")


def _connect() -> dist.Store | Failure:
    address, port = ranks.store_address()
    try:
        client = dist.TCPStore(
            address, port, is_master=False, timeout=timedelta(seconds=ranks.STORE_TIMEOUT)
        )
        token = uuid.uuid4().hex
        client.set(f"ninefold/{token}", token)
        if client.get(f"ninefold/{token}") != token.encode():
            return ranks.no_answer("something else listens there")
    except (dist.DistError, RuntimeError, ValueError) as error:
        return ranks.no_answer(str(error).partition("\n")[0])
    client.set_timeout(TIMEOUT)
    return dist.PrefixStore(f"ninefold/{ranks.found(os.environ).attempt}", client)


def dismiss(code: int) -> None:
    """On rank 0: make ranks that still wait for a job exit with `code`."""
    store().compare_set(KEY, "", json.dumps(code))


def receive() -> RunSpec | int:
    """On any other rank: the job, or the exit code to exit with. Raises PeerError."""
    try:
        content = json.loads(store().get(KEY))
    except (dist.DistError, RuntimeError) as error:
        raise PeerError(
            "rank",
            ranks.found(os.environ).rank,
            f"no job came from rank 0 ({str(error)[:120]})",
            f"it waits {TIMEOUT} for one",
            "see what rank 0 says",
        ) from error
    if isinstance(content, int):
        return content
    return RunSpec(**{**content, "folder": Path(content["folder"])})


def share_cache(spec: RunSpec, make: Callable[[], dict[str, str] | None]) -> dict[str, str] | None:
    """The cache of this host, which its local rank 0 makes; returns when every host has its own.

    Raises Failure.
    """
    if spec.cache is None:
        return None
    me, shared = ranks.found(os.environ), store()
    host, hosts = me.rank // me.local_world_size, me.world_size // me.local_world_size
    keys = [f"cache/{number}" for number in range(hosts)]
    if me.local_rank == 0:
        shared.set(keys[host], json.dumps(make()))
    try:
        shared.wait(keys)
        found: dict[str, str] = json.loads(shared.get(keys[host]))
    except (dist.DistError, RuntimeError) as error:
        raise PeerError(
            "rank",
            me.rank,
            f"no cache came from a local rank 0 ({str(error)[:120]})",
            f"it waits {TIMEOUT} for one",
            "see what the other ranks say",
        ) from error
    return found


def cache_of_this_host(spec: RunSpec) -> dict[str, str] | None:
    """On a rank other than 0: the cache that this host's processes share. Raises Failure."""

    def make() -> dict[str, str] | None:
        return fill_cache_of(spec.job, test=spec.command == "evaluate")

    return share_cache(spec, make)


def first_to_report(failure: Failure) -> bool:
    """Whether no other rank has printed this run's failure yet.

    A rank that only misses another waits, so that the one that knows the cause is first.
    """
    if isinstance(failure, PeerError):
        time.sleep(2)
    return bool(store().add("failed", 1) == 1)
