"""Contestants in separate processes: memory, allocator and environment belong to a process."""

from __future__ import annotations

import multiprocessing
import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from multiprocessing.connection import Connection
from typing import Any
from unittest.mock import patch

Turn = Callable[[], float]
Ready = Callable[..., AbstractContextManager[Turn]]


@contextmanager
def apart(
    ready: Ready, *arguments: Any, environment: Mapping[str, str] | None = None
) -> Iterator[Turn]:
    """Start `ready(*arguments)` in a new process; each call takes a turn there."""
    context = multiprocessing.get_context("spawn")
    here, there = context.Pipe()
    process = context.Process(target=_serve, args=(there, ready, arguments), daemon=True)
    with patch.dict(os.environ, environment or {}):
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
