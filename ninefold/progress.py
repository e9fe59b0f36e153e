"""What a terminal shows of a run: lines and progress bars, or in a quiet run its log alone."""

from __future__ import annotations

import io
import logging
import sys
import threading
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
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


def bars_hidden() -> AbstractContextManager[None]:
    """While the block runs, anything may be printed; then the bars are shown below it."""
    if "tqdm" not in sys.modules:
        return nullcontext()
    from tqdm import tqdm

    return tqdm.external_write_mode(nolock=True)


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


def duration(seconds: float) -> str:
    """`seconds` in h, min or s, rounded."""
    for size, unit in ((3600, "h"), (60, "min")):
        if seconds >= 2 * size:
            return f"{seconds / size:.0f} {unit}"
    return f"{seconds:.0f} s"


def milliseconds(seconds: float) -> str:
    """`seconds` in ms, in three digits."""
    return f"{float(f'{1000 * seconds:.3g}'):,g} ms"


def aligned(rows: Sequence[Sequence[str]]) -> list[str]:
    """Return a line for each row, with the columns below each other."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return [
        "  ".join(text.ljust(width) for text, width in zip(row, widths, strict=True)).rstrip()
        for row in rows
    ]
