"""A worker process: it carries out one order, and its failure is one line."""

from __future__ import annotations

import logging
import os
import signal
import sys
import time
import traceback
from pathlib import Path

import torch
import torch.distributed as dist

from ninefold import parent_death, references, training_run
from ninefold.errors import (
    Failure,
    PeerError,
    ResourceError,
    memory_failure,
    resource_failure,
)
from ninefold.folder import exclusive, log_file, logging_to
from ninefold.order import Order
from ninefold.result import FILE, write_json
from ninefold.secrets import redact

log = logging.getLogger(__name__)


def work(order: Order) -> None:
    """The entry point of a process that the launcher started: never returns with a failure."""
    assert "ninefold.leash" in sys.modules, "the forkserver would outlive its launcher"
    parent_death.follow_parent()
    if Path("/sys/class/net/lo").exists():  # all peers are on this host: keep gloo's sockets there
        os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    try:
        signal.signal(signal.SIGINT, signal.default_int_handler)  # loggers want to be closed
        run(order)
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    except KeyboardInterrupt:
        os._exit(130)
    except Failure as failure:
        assert order.report is not None
        rank = os.environ.get("RANK", "0")
        content = {"kind": type(failure).__name__, "line": str(failure), "time": time.time()}
        write_json(order.report / f"rank{rank}.json", content)
        logging.shutdown()
        sys.stdout.flush()
        os._exit(failure.code)  # at once: a peer that waits for this process would never return


def run(order: Order) -> None:
    """Do what `order` says in this process. Raises Failure, and nothing else but an interrupt."""
    rank = int(os.environ.get("RANK", "0"))
    with logging_to(order.folder, rank), references.noted():
        try:
            with exclusive(order.folder, rank):
                if order.task == "train":
                    if rank == 0:  # what an earlier part of this run came to no longer holds
                        (order.folder / FILE).unlink(missing_ok=True)
                    training_run.train(order)
                else:
                    from ninefold import evaluation_run  # it draws, and matplotlib loads slowly

                    evaluation_run.evaluate(order)
        except Exception as error:
            log.error("%s", traceback.format_exc())
            raise failure_of(error, order.folder, rank) from error


PEER_GONE = ("Connection closed by peer", "Connection reset by peer", "Timed out waiting",
             "Broken pipe", "Socket Timeout", "wait timeout")  # fmt: skip


def failure_of(error: Exception, folder: Path, rank: int) -> Failure:
    """`error` as a failure with a line and an exit code of its own."""
    details = f"traceback in {log_file(folder, rank)}"
    text = redact(str(error))  # before any of it is cut short: half a secret is one too
    if isinstance(error, Failure):
        return error
    if exhausted := memory_failure(error, details):
        return exhausted
    if isinstance(error, torch.OutOfMemoryError):
        return ResourceError(
            "memory", "exhausted", text.partition("\n")[0] or "out of memory", details,
            "lower batch_size or choose a smaller model",
        )  # fmt: skip
    if isinstance(error, OSError):
        return resource_failure(error, details, "see that it can be written to")
    if isinstance(error, dist.DistError) or any(words in text for words in PEER_GONE):
        return PeerError(
            "rank", rank, f"a peer went away or did not answer ({text[:120]})", details,
            "see the other ranks' logs; launch.timeout is how long one waits",
        )  # fmt: skip
    return Failure("rank", rank, f"{type(error).__name__}: {text}", details, "please report it")
