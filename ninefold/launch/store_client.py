"""Requests to the TCPStore of all ranks that are answered within some seconds, or fail."""

from __future__ import annotations

import queue
import socket
import threading
from collections.abc import Callable
from concurrent.futures import Future
from concurrent.futures import TimeoutError as Unanswered
from datetime import timedelta
from typing import Any, TypeVar

import torch.distributed as dist

from ninefold.process import until
from ninefold.ranks import Ranks

ANSWER_SECONDS = 5.0  # seconds that a request takes at most, and a look for the store
PROBE_SECONDS = 1.0  # seconds to wait for a port to open, and for a store to say whose it is

Answer = TypeVar("Answer")


class Lost(Exception):
    """The store did not answer.

    gone: its connection is broken; it may only be slow if not.
    """

    def __init__(self, reason: str, gone: bool) -> None:
        super().__init__(reason)
        self.gone = gone


class StoreClient:
    """Sends the requests of all threads of this process to a store, one after another.

    A request to a host that is no longer there can wait for as long as TCP does, so requests are
    made by a thread that nobody waits for. All of them raise Lost.
    """

    def __init__(self, store: dist.Store) -> None:
        self._store = store
        self._requests: queue.SimpleQueue[tuple[Callable[[dist.Store], Any], Future[Any]]]
        self._requests = queue.SimpleQueue()
        threading.Thread(target=self._serve, daemon=True, name="store client").start()

    def ask(self, request: Callable[[dist.Store], Answer]) -> Answer:
        """What `request` returns, in at most ANSWER_SECONDS seconds. Raises Lost."""
        answer: Future[Answer] = Future()
        self._requests.put((request, answer))
        try:
            return answer.result(timeout=ANSWER_SECONDS)
        except Unanswered as error:
            answer.cancel()
            raise Lost(f"no answer in {ANSWER_SECONDS:.0f} s", gone=False) from error
        except (dist.DistError, RuntimeError, ValueError) as error:
            raise Lost(str(error).partition("\n")[0], gone=True) from error

    def set(self, key: str, value: str) -> None:
        """Give `key` a value."""
        self.ask(lambda store: store.set(key, value))

    def has(self, key: str) -> bool:
        """Whether `key` has a value."""
        return self.ask(lambda store: store.check([key]))

    def get(self, key: str) -> str | None:
        """The value of `key`; None if it has none yet."""
        return self.ask(lambda store: store.get(key).decode() if store.check([key]) else None)

    def count(self, key: str, more: int = 1) -> int:
        """Add `more` to a counter; returns the sum."""
        return int(self.ask(lambda store: store.add(key, more)))

    def compare_and_set(self, key: str, value: str) -> str:
        """Compare-and-set: store `value` if `key` is unset. Returns the stored value."""
        return self.ask(lambda store: store.compare_set(key, "", value)).decode()

    def _serve(self) -> None:
        while True:
            request, answer = self._requests.get()
            if not answer.set_running_or_notify_cancel():
                continue
            try:
                answer.set_result(request(self._store))
            except Exception as error:
                answer.set_exception(error)


def connected(ranks: Ranks, patience: float) -> tuple[dist.Store, int]:
    """A client of the store of all ranks, and its port. Rank 0 serves the store if it is to.

    patience: seconds to look for a store that rank 0 is still to serve. Raises Lost, and OSError if
    no port is free.
    """
    mark = f"ninefold/{ranks.run}/served"
    if not ranks.serves:
        (port,) = ranks.ports
        client = _within(lambda: _client(ranks.address, port, ANSWER_SECONDS), ANSWER_SECONDS + 1)
        _within(lambda: client.set(mark, "yes"), ANSWER_SECONDS)
        return client, port
    if ranks.rank == 0:
        store = _served(ranks.ports)
        store.set(mark, "yes")
        return store, store.port
    said = "no port is known"

    def found() -> tuple[dist.Store, int] | None:
        nonlocal said
        for port in ranks.ports:
            try:
                return _marked(ranks.address, port, mark), port
            except Lost as error:
                said = str(error)
        return None

    if (answer := until(found, patience, look=0.2)) is None:
        raise Lost(said, gone=True)
    return answer


def _marked(address: str, port: int, mark: str) -> dist.Store:
    """A client of the store with the key `mark`; another run's store has another. Raises Lost."""
    # A client of a store that is not there tries again and again, and says so on stderr.
    try:
        socket.create_connection((address, port), timeout=PROBE_SECONDS).close()
    except OSError as error:
        raise Lost(error.strerror or str(error), gone=True) from error
    # torch asks the name server for the names of addresses: 5 s if that does not answer.
    client = _within(lambda: _client(address, port, ANSWER_SECONDS), ANSWER_SECONDS + 1)
    _within(lambda: client.wait([mark], timedelta(seconds=PROBE_SECONDS)), PROBE_SECONDS + 0.5)
    client.set_timeout(timedelta(seconds=ANSWER_SECONDS))
    return client


def _client(address: str, port: int, seconds: float) -> dist.TCPStore:
    return dist.TCPStore(address, port, is_master=False, timeout=timedelta(seconds=seconds))


def _served(ports: tuple[int, ...]) -> dist.TCPStore:
    """Serve a store on the first of `ports` that is free. Raises OSError if none is."""
    said = "no port is known"
    for port in ports:
        try:
            return dist.TCPStore(
                "localhost",
                port,
                is_master=True,
                wait_for_workers=False,
                timeout=timedelta(seconds=ANSWER_SECONDS),
            )
        except (dist.DistError, RuntimeError) as error:
            said = str(error).partition("\n")[0]
    raise OSError(said)


def _within(call: Callable[[], Answer], seconds: float) -> Answer:
    """What `call` returns, in at most so many seconds; it is left behind if not. Raises Lost."""
    answer: Future[Answer] = Future()

    def run() -> None:
        try:
            answer.set_result(call())
        except Exception as error:
            answer.set_exception(error)

    threading.Thread(target=run, daemon=True).start()
    try:
        return answer.result(timeout=seconds)
    except Unanswered as error:
        said = f"no answer in {seconds:g} s: another program listens there, or names are slow to"
        raise Lost(f"{said} look up", gone=False) from error
    except (dist.DistError, RuntimeError, ValueError, OSError) as error:
        raise Lost(str(error).partition("\n")[0], gone=True) from error
