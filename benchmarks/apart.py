"""Contestants in separate processes: memory and allocator belong to a process."""

from __future__ import annotations

import multiprocessing
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from multiprocessing.connection import Connection
from typing import Any

Turn = Callable[[], float]
Ready = Callable[..., AbstractContextManager[Turn]]


@contextmanager
def apart(ready: Ready, *arguments: Any) -> Iterator[Turn]:
    """Start `ready(*arguments)` in a new process; each call takes a turn there."""
    context = multiprocessing.get_context("spawn")
    here, there = context.Pipe()
    process = context.Process(target=_serve, args=(there, ready, arguments), daemon=True)
    process.start()
    there.close()

    def turn() -> float:
        here.send(True)
        return float(here.recv())

    try:
        yield turn
    finally:
        here.close()
        process.join()


def _serve(connection: Connection, ready: Ready, arguments: tuple[Any, ...]) -> None:
    with ready(*arguments) as turn:
        while True:
            try:
                connection.recv()
            except EOFError:
                return
            connection.send(turn())
