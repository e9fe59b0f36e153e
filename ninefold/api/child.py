"""Runs a command of ninefold in a process of its own, and keeps the events that it tells.

The process has a session (setsid) of its own: Ctrl-C, which a notebook sends to all processes of
its session, reaches it only as `_stop` sends it. Nothing is forked from this process, and no state
of it is changed.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ninefold import places
from ninefold.errors import KINDS, Failure
from ninefold.files import opener
from ninefold.launch.events import VARIABLE
from ninefold.signals import held_back

GRACE = 45.0  # seconds from an interrupt until the command is killed: more than launch.grace (30)
TRAIN, FITS = (("-m", "ninefold", name) for name in ("train", "fits"))

Event = Mapping[str, Any]


@dataclass
class Ended:
    """How a command ended: its exit code, what it told that failed, and the rows of `FITS`."""

    code: int
    failures: list[Failure] = field(default_factory=list)
    rows: list[Event] = field(default_factory=list)


def run(arguments: Sequence[str], log: Path, prints: bool) -> Ended:
    """Run Python with these arguments and wait for its end.

    arguments: `TRAIN` or `FITS`, and those of the command. log: takes what it prints unless
    `prints`.
    Raises KeyboardInterrupt, once the command and all that it started have ended.
    """
    reader, writer = os.pipe()
    process = None
    try:
        variables = environment() | {VARIABLE: f"{writer}:{os.getpid()}"}
        with open(log, "ab", opener=lambda name, flags: opener(name, flags, 0o600)) as file:
            out, err = file.fileno(), file.fileno()
            if prints:
                out, err = 1 if os.isatty(1) else 2, 2  # nothing of it goes into a pipe
            with held_back():  # until the command has handlers
                process = subprocess.Popen(
                    [sys.executable, *arguments],
                    stdin=subprocess.DEVNULL,
                    stdout=out,
                    stderr=err,
                    env=variables,
                    pass_fds=[writer],
                    start_new_session=True,
                )
        os.close(writer)
        writer = -1
        events = [*_events(reader)]
        failures = [KINDS[of["kind"]](*of["parts"]) for of in events if of["event"] == "failure"]
        rows = [event for event in events if event["event"] == "row"]
        return Ended(process.wait(), failures, rows)
    except BaseException:
        if process is not None:
            _stop(process)
        raise
    finally:
        for descriptor in (reader, writer):
            if descriptor >= 0:
                os.close(descriptor)


def environment() -> dict[str, str]:
    """The environment of this process, and in NINEFOLD_PATH where it finds modules."""
    found = {key: value for key, value in os.environ.items() if key != "MPLBACKEND"}  # a kernel's
    found[places.PATH] = places.path_text()
    if not places.INSTALLED:  # a clone may be found by this process's sys.path alone
        known = [found["PYTHONPATH"]] if found.get("PYTHONPATH") else []
        found["PYTHONPATH"] = os.pathsep.join([*known, str(places.ROOT)])
    return found


def _events(reader: int) -> Iterator[Event]:
    """What the command tells, until it has closed its end."""
    with os.fdopen(reader, closefd=False) as lines:
        for line in lines:
            if not line.endswith("\n"):
                return  # it was killed while it told this
            yield json.loads(line)


def _stop(process: subprocess.Popen[bytes]) -> None:
    """End a command as Ctrl-C does, which saves what it has; by force if it is asked to again."""
    try:
        process.send_signal(signal.SIGINT)
        process.wait(GRACE)
    except subprocess.TimeoutExpired:
        process.kill()  # the processes that it has started end with it
        process.wait()
    except BaseException:
        process.kill()
        process.wait()
        raise
