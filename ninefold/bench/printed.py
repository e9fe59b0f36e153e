"""What a command has printed: its last words, and the exception that it ended with."""

from __future__ import annotations

import os
import re
from pathlib import Path

from ninefold.files import opener

TAIL = 4096  # bytes of its output that are looked at
LARGEST = 1 << 26  # the same where an exception is looked for
QUOTED = 300  # characters of a command's last output that an error shows
LAUNCHER_FAILED = "ChildFailedError"
TRACEBACK = "Traceback (most recent call last)"
EXCEPTION = re.compile(r"^(?:\[rank\d+\]: ?)?((?:\w+\.)*\w*(?:Error|Exception)\w*(?:: .*)?)$", re.M)
FRAME = re.compile(r'File "([^"]+)", line (\d+)')


def last_line(log: Path) -> str:
    """The end of what a command has printed: the error of its last traceback, if there is one.

    Loggers print more after that, and what cannot be closed at the end has a traceback of its own.
    """
    lines = [line.rstrip() for line in tail(log, TAIL).splitlines() if line.strip()]
    for number in range(len(lines) - 1, -1, -1):
        before = lines[number - 1] if number else ""
        if lines[number].startswith(TRACEBACK) and not before.startswith("Exception ignored"):
            told = [line for line in lines[number + 1 :] if not line[0].isspace()]
            return told[0][:QUOTED] if told else lines[-1].strip()[-QUOTED:]
    return lines[-1].strip()[-QUOTED:] if lines else "nothing"


def raised(log: Path, folder: Path) -> str | None:
    """The first exception that torchrun, which ends with one of its own, has let through.

    Its words come after the last line of the traceback that is of a script in `folder`.
    """
    text = tail(log, LARGEST)
    if LAUNCHER_FAILED not in text or (error := EXCEPTION.search(text)) is None:
        return None
    lines = [*FRAME.finditer(text, 0, error.start())]
    own = [f"{Path(m[1]).name}:{m[2]}: " for m in lines if Path(m[1]).parent == folder]
    return f"{own[-1] if own else ''}{error[1].rstrip('.')[:QUOTED]}"


def tail(log: Path, most: int) -> str:
    """The last bytes of what a command has printed, at most so many."""
    with open(log, "rb", opener=opener) as file:
        file.seek(max(os.path.getsize(log) - most, 0))
        return file.read().decode("utf-8", "replace")
