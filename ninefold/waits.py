"""Waiting: until something holds, with a line on what for; and locks of files."""

from __future__ import annotations

import fcntl
import math
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import IO, TypeVar

from ninefold import signals
from ninefold.errors import one_line

Answer = TypeVar("Answer")
TELL_SECONDS = 5.0  # of waiting after which it is told what for


def poll_until(
    predicate: Callable[[], Answer], timeout: float = math.inf, interval: float = 0.05
) -> Answer:
    """Call `predicate` every `interval` seconds until it returns something true, or for `timeout`.

    Returns its last answer, and raises what it raises. Every wait in a loop is this function. A
    signal whose handler raises ends it, so a wait without a limit still ends with the command.
    """
    deadline = time.monotonic() + timeout
    while not (answer := predicate()) and (left := deadline - time.monotonic()) > 0:
        time.sleep(min(interval, left))
    return answer


@contextmanager
def telling(what: str) -> Iterator[None]:
    """Print `waiting for WHAT` on stderr as soon as the block has run for TELL_SECONDS."""
    line = f"waiting for {one_line(what)}"
    timer = signals.later(TELL_SECONDS, lambda: print(line, file=sys.stderr, flush=True))
    try:
        yield
    finally:
        timer.cancel()


def locked(file: int | IO[str]) -> bool:
    """Lock an open file exclusively, until it is closed, without waiting.

    Returns whether it is locked now: False if somebody else has it locked. Raises OSError.
    """
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def unlock(file: int | IO[str]) -> None:
    """Unlock a file. Closing it is not enough: a process that was forked meanwhile has it open."""
    fcntl.flock(file, fcntl.LOCK_UN)
