"""Trackers: loggers whose client works in a thread, so that no server can hold a run up."""

from __future__ import annotations

import contextlib
import hashlib
import logging
import os
import queue
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

from ninefold.errors import Failure, error_text, one_line, require_package
from ninefold.files import read_text, write_durably
from ninefold.logger import Run
from ninefold.progress import say
from ninefold.result import Result
from ninefold.secrets import redact, redacted

ID = "tracking_id"  # in the run folder
LOCAL = 60.0  # seconds at the end of a run for what is done on this machine
Point = tuple[int, float, Mapping[str, float]]  # step, time.time(), values
log = logging.getLogger(__name__)


class Client(Protocol):
    """The side of a tracker that knows its library. All but its making happens in the thread."""

    def start(self) -> str | None:
        """Begin the run, or go on with it. Returns a note, if there is something to say."""

    def log(self, points: Sequence[Point]) -> None:
        """Log one or more points: all that there are, where the library is slower than the run."""

    def finish(self, status: str) -> None:
        """status: `ok`, or as in result.json how else the run ended."""

    def abandon(self) -> None:
        """End what the end of this process would wait for. The thread may still be at work."""


class Tracked:
    """The logger: hands everything to the client's thread, and waits for it only at the end."""

    def __init__(
        self,
        run: Run,
        name: str,
        client: Callable[[Mapping[str, Any], float], Client],
        wait: float,
        local: bool,
    ) -> None:
        """Make the client, which imports its library, and start its thread.

        client: gets what it is to know about the run, and the seconds that it may take at the end:
            `wait` for a server, and at least LOCAL where all is `local`.
        Raises ConfigError if the library is not installed.
        """
        require_package("logger", name, name, name)
        about = {
            "id": identity(run.folder, run.first_step > 0),
            "name": run.folder.name,
            "folder": str(run.folder.absolute()),
            "resumes": run.first_step > 0,
            "settings": {
                **{key: as_text(value) for key, value in redacted(run.settings).items()},
                "score_name": run.score,
                "score_unit": run.unit,
                "score_better": run.better,
            },
        }
        self._name = name
        self._wait = max(LOCAL, wait) if local else wait
        self._messages: queue.SimpleQueue[Point | str] = queue.SimpleQueue()
        self._done = threading.Event()
        self._error: str | None = None
        self._given_up = False
        self._client: Client | None = None
        self._process = os.getpid()
        try:
            self._client = client(about, self._wait)
            threading.Thread(
                target=self._serve, args=(self._client,), name=name, daemon=True
            ).start()
        except Exception as error:
            self._failed(error)

    def log(self, step: int, values: Mapping[str, float]) -> None:
        self._warn()
        if not self._given_up:
            self._messages.put((step, time.time(), dict(values)))

    def close(self, result: Result | None) -> None:
        """Wait for what is under way, for a while."""
        if self._given_up:
            return
        # After a failure this is called while that is handled.
        failure = sys.exc_info()[1]
        ended = failure.status if isinstance(failure, Failure) else Failure.status
        self._messages.put("ok" if result is not None else ended)
        # A run that has failed or was stopped must end soon.
        wait = self._wait if result is not None else min(self._wait, 10.0)
        if not self._done.wait(wait):
            self._error = f"it was not done {wait:g} s after the run"
        self._warn()
        self._given_up = True

    def _serve(self, client: Client) -> None:
        """The thread: do what the messages say, until one says how the run has ended."""
        try:
            if (note := client.start()) is not None:
                say(f"note: {redact(note)}")
            ended = None
            while ended is None and not self._given_up:
                if os.getpid() != self._process:  # one that the library forked, and lets return
                    os._exit(0)
                found = [self._messages.get()]
                found += [self._messages.get() for _ in range(self._messages.qsize())]
                if points := [message for message in found if not isinstance(message, str)]:
                    client.log(points)
                ended = found[-1] if isinstance(found[-1], str) else None
            if ended is not None:
                client.finish(ended)
        except BaseException as error:  # SystemExit, too
            self._failed(error)
        self._done.set()

    def _failed(self, error: BaseException) -> None:
        self._error = error_text(error)
        self._done.set()

    def _warn(self) -> None:
        """Warn once, if there is an error, and give up."""
        if self._error is None or self._given_up:
            return
        self._given_up = True
        if self._client is not None:
            self._client.abandon()
        why = redact(one_line(self._error))[:300]
        line = f"logger={self._name}: {why}; the run continues without it"
        log.warning(line)
        print(f"warning: {line}", file=sys.stderr, flush=True)


def identity(folder: Path, resumes: bool) -> str:
    """The id of the run in `folder`: a hash, kept there, so that the resumed run has it too."""
    path = folder / ID
    with contextlib.suppress(OSError, ValueError):
        found = read_text(path).strip() if resumes else ""
        if found.isalnum():
            return found[:64]
    made = hashlib.sha256(f"{folder.absolute()} {time.time_ns()}".encode()).hexdigest()[:16]
    write_durably(path, made.encode() + b"\n")
    return made


def as_text(value: Any) -> Any:
    """A setting as JSON has it."""
    return value if isinstance(value, bool | int | float | str) or value is None else str(value)
