"""What a command tells the Python process that has started it: events, as lines of JSON in a pipe.

`ninefold.compare` starts a command with NINEFOLD_EVENTS="DESCRIPTOR:PID": of the pipe, and its own
process id. Other commands tell nothing.
"""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from contextlib import suppress
from typing import Any

from ninefold import signals
from ninefold.errors import Failure

VARIABLE = "NINEFOLD_EVENTS"


class _Caller:
    """The pipe of this process; None if nobody listens."""

    pipe: int | None = None


def connect() -> None:
    """Begin to tell the caller, if there is one, and end with it, even if it is killed."""
    told = os.environ.pop(VARIABLE, None)  # not for the processes that this one starts
    if told is None:
        return
    pipe, parent = told.split(":")
    _Caller.pipe = int(pipe)
    os.set_inheritable(_Caller.pipe, False)
    signals.follow_parent(int(parent))


def heard() -> bool:
    """Whether a caller listens, which reads the answer from the study's folder itself."""
    return _Caller.pipe is not None


def tell(event: str, **content: Any) -> None:
    """Tell the caller of an event, if there is one."""
    if _Caller.pipe is not None:
        line = json.dumps({"event": event, **content}) + "\n"
        with suppress(OSError):  # it is gone
            os.write(_Caller.pipe, line.encode())


def tell_failures(failures: Sequence[Failure]) -> None:
    for failure in failures:
        tell("failure", kind=type(failure).__name__, parts=failure.parts)
