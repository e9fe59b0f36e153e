"""Trackers: loggers whose client runs in a process of its own, so that no server can hold a run up.

The client's process is told what to log in lines of JSON, and answers in lines. It ends with the
run, however that ends, and takes along what it has started.
"""

from __future__ import annotations

import contextlib
import hashlib
import importlib
import json
import logging
import os
import queue
import select
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

from ninefold import signals
from ninefold.errors import Failure, one_line, require_package
from ninefold.files import read_text, write_durably
from ninefold.logger import Run
from ninefold.places import take_path
from ninefold.process import importable, safe_path
from ninefold.progress import say
from ninefold.result import Result
from ninefold.secrets import redact, redacted

ID = "tracking_id"  # in the run folder
LOCAL = 60.0  # seconds at the end of a run for what is done on this machine
STOPPED = 10.0  # the same for a run that has failed or was stopped, and must end soon
Point = tuple[int, float, Mapping[str, float]]  # step, time.time(), values
READY, DONE, NOTE, ERROR = "ready", "done", "note ", "error "  # the client's answers
log = logging.getLogger(__name__)


class Client(Protocol):
    """The side of a tracker that knows its library, made in a process of its own."""

    def __init__(self, about: Mapping[str, Any]) -> None:
        """Import the library. about: what the logger gave."""

    def start(self) -> str | None:
        """Begin the run, or go on with it. Returns a note, if there is something to say."""

    def log(self, points: Sequence[Point]) -> None:
        """Log one or more points: all that there are, where the library is slower than the run."""

    def finish(self, status: str) -> None:
        """status: `ok`, or as in result.json how else the run ended."""


class Tracked:
    """The logger's side: hands everything on without waiting for it, until the run has ended."""

    def __init__(self, run: Run, name: str, wait: float, local: bool, **options: Any) -> None:
        """Start the process of the client, ninefold.trackers.NAME.Client.

        wait: seconds after the end of the run for a server; where all is `local`, at least LOCAL.
        options: for the client. Raises ConfigError if its library is not installed.
        """
        require_package("logger", name, name, name)
        about = {
            "tracker": name,
            "id": identity(run.folder, run.first_step > 0),
            "name": run.folder.name,
            "folder": str(run.folder.absolute()),
            "resumes": run.first_step > 0,
            "settings": {
                **{key: as_text(value) for key, value in redacted(run.settings).items()},
                "score": run.score,
                "score_unit": run.unit,
                "score_better": run.better,
            },
            **options,
        }
        self._name = name
        self._wait = max(LOCAL, wait) if local else wait
        self._answers = self._unsent = b""
        self._ready = self._done = False
        self._process: subprocess.Popen[bytes] | None = None
        try:
            self._process = self._started()
        except OSError as error:
            self._warn(f"its process cannot be started: {error}")
        self._send(about)

    def _started(self) -> subprocess.Popen[bytes]:
        """Start the client's process. Raises OSError."""
        answers, theirs = os.pipe()
        try:
            with importable(), safe_path():
                env = dict(os.environ)
            process = subprocess.Popen(
                [sys.executable, "-m", __name__, str(theirs)],
                stdin=subprocess.PIPE,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                pass_fds=[theirs],
                env=env,
                start_new_session=True,  # a group of its own: the run gets Ctrl-C, and then ends it
            )
        except OSError:
            os.close(answers)
            raise
        finally:
            os.close(theirs)
        assert process.stdin is not None
        self._from, self._to = answers, process.stdin.fileno()
        for descriptor in (self._from, self._to):
            os.set_blocking(descriptor, False)
        return process

    def log(self, step: int, values: Mapping[str, float]) -> None:
        if self._process is not None:
            self._listen()
        self._send([step, time.time(), dict(values)])

    def close(self, result: Result | None) -> None:
        """Wait for what is under way, for a while; after that nothing of the client is left."""
        if self._process is None:
            return
        # After a failure this is called while that is handled.
        failure = sys.exc_info()[1]
        ended = failure.status if isinstance(failure, Failure) else Failure.status
        self._send({"status": "ok" if result is not None else ended})
        most = max(LOCAL, self._wait) if result is not None else STOPPED
        wait = min(self._wait, most)
        started = time.monotonic()
        ready = None
        while self._process is not None and not self._done:
            self._send(None)
            self._listen(0.05)
            now = time.monotonic()
            if self._ready and ready is None:
                ready = now  # importing the library is not the server's fault
            late = now - started > most if ready is None else now - ready > wait
            if late:
                self._give_up(f"it was not done {wait if ready else most:g} s after the run")
        self._end()

    def _send(self, message: Any) -> None:
        """Hand `message` on, None: what could not be handed on yet."""
        if self._process is None:
            return
        if message is not None:
            self._unsent += json.dumps(message).encode() + b"\n"
        try:
            while self._unsent:
                self._unsent = self._unsent[os.write(self._to, self._unsent) :]
        except BlockingIOError:
            pass
        except OSError:  # it has ended; its last answer may say why
            self._listen()
            self._give_up("its process has ended")

    def _listen(self, seconds: float = 0) -> None:
        """Read answers, waiting so long for one."""
        if seconds:
            select.select([self._from], [], [], seconds)
        try:
            while data := os.read(self._from, 1 << 16):
                self._answers += data
            ended = True
        except BlockingIOError:
            ended = False
        *lines, self._answers = self._answers.split(b"\n")
        for line in lines:
            self._heard(line.decode(errors="replace"))
        if ended and not self._done:
            self._give_up("its process has ended")

    def _heard(self, line: str) -> None:
        if line == READY:
            self._ready = True
        elif line == DONE:
            self._done = True
        elif line.startswith(NOTE):
            say(f"note: {redact(line.removeprefix(NOTE))}")
        elif line.startswith(ERROR):
            self._give_up(line.removeprefix(ERROR))

    def _give_up(self, why: str) -> None:
        """Warn once, and end the client."""
        if self._process is None:
            return
        self._end()
        self._warn(why)

    def _warn(self, why: str) -> None:
        line = f"logger={self._name}: {redact(one_line(why))[:300]}; the run goes on without it"
        log.warning(line)
        print(f"warning: {line}", file=sys.stderr, flush=True)

    def _end(self) -> None:
        """End the client's process and all that it has started."""
        process, self._process = self._process, None
        if process is None:
            return
        with contextlib.suppress(OSError):
            os.killpg(process.pid, signal.SIGKILL)
        with contextlib.suppress(subprocess.TimeoutExpired):  # it hangs in the kernel
            process.wait(1)
        assert process.stdin is not None
        with contextlib.suppress(OSError):
            process.stdin.close()
        os.close(self._from)


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


# The client's process


def serve(answers: int) -> None:
    """Do what the lines on stdin say, until the last one.

    A signal to all processes of a service is for the run, which then says how it has ended.
    """
    signals.ignore()

    def answer(text: str) -> None:
        os.write(answers, text.encode() + b"\n")

    messages: queue.SimpleQueue[Any] = queue.SimpleQueue()
    threading.Thread(target=receive, args=(messages,), daemon=True).start()
    try:
        about = messages.get()
        module = importlib.import_module(f"ninefold.trackers.{about['tracker']}")
        client: Client = module.Client(about)
        answer(READY)
        if (note := client.start()) is not None:
            answer(NOTE + note)
        ended: list[str] = []
        while not ended:
            found = taken(messages)
            points = [
                (step, seconds, values)
                for step, seconds, values in (m for m in found if isinstance(m, list))
            ]
            if points:
                client.log(points)
            ended = [message["status"] for message in found if isinstance(message, dict)]
        client.finish(ended[0])
        answer(DONE)
    except BaseException as error:
        answer(ERROR + one_line(f"{type(error).__name__}: {error}"))
    os._exit(0)  # without the libraries' own ways of waiting at the end


def taken(messages: queue.SimpleQueue[Any]) -> list[Any]:
    """All messages that wait, at least one."""
    return [messages.get(), *(messages.get() for _ in range(messages.qsize()))]


def receive(messages: queue.SimpleQueue[Any]) -> None:
    """Read lines while the library is busy. The run is gone where they end without the last one."""
    last = None
    for line in sys.stdin.buffer:
        last = json.loads(line)
        messages.put(last)
    if not (isinstance(last, dict) and "status" in last):
        os.killpg(0, signal.SIGKILL)


if __name__ == "__main__":
    take_path()
    serve(int(sys.argv[1]))
