"""What a run prints while it runs: lines and progress bars, or in a quiet run its log alone."""

from __future__ import annotations

import io
import logging
import sys
import threading
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tqdm import tqdm

log = logging.getLogger(__name__)


def bar(*arguments: Any, **options: Any) -> tqdm[Any]:
    """A tqdm progress bar on stderr, shown on a terminal only, with a lock of threads.

    tqdm's own lock is a named semaphore, which a process that is killed leaves behind.
    """
    from tqdm import tqdm  # a command that is refused need not wait 6 ms for it

    tqdm.set_lock(threading.RLock())
    return tqdm(*arguments, **{"disable": None, "leave": False, **options})


def say(line: str) -> None:
    """Print a line, and log it."""
    print(line, flush=True)
    if not isinstance(sys.stdout, ToLog):
        log.info("%s", line)


class ToLog(io.TextIOBase):
    """Standard output or error of a quiet run: its lines go to the log."""

    def __init__(self) -> None:
        self._line = ""

    def writable(self) -> bool:
        return True

    def write(self, text: str) -> int:
        *lines, self._line = f"{self._line}{text}".split("\n")
        for line in filter(str.strip, lines):
            log.info("%s", line)
        return len(text)
