"""What a command tells the Python process that has started it: events, as lines of JSON in a pipe.

`ninefold.compare` starts a command with NINEFOLD_EVENTS="DESCRIPTOR:PID:MODE": of the pipe, its own
process id, and `screen` if it shows the progress, else `failures`. Other commands tell nothing.
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
    """The pipe of this process; None if nobody listens. screen: whether it shows the progress."""

    pipe: int | None = None
    screen = False


def connect() -> None:
    """Begin to tell the caller, if there is one, and end with it, even if it is killed."""
    told = os.environ.pop(VARIABLE, None)  # not for the processes that this one starts
    if told is None:
        return
    pipe, parent, screen = told.split(":")
    _Caller.pipe, _Caller.screen = int(pipe), screen == "screen"
    os.set_inheritable(_Caller.pipe, False)
    signals.follow_parent(int(parent))


def heard() -> bool:
    """Whether a caller listens, which reads the answer from the study's folder itself."""
    return _Caller.pipe is not None


def shows() -> bool:
    """Whether the caller shows how far a study is."""
    return _Caller.screen


def tell(event: str, **content: Any) -> None:
    """Tell the caller of an event, if there is one."""
    if _Caller.pipe is not None:
        line = json.dumps({"event": event, **content}) + "\n"
        with suppress(OSError):  # it is gone
            os.write(_Caller.pipe, line.encode())


def tell_failures(failures: Sequence[Failure]) -> None:
    for failure in failures:
        tell("failure", kind=type(failure).__name__, parts=failure.parts)
