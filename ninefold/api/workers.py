"""New processes for the steps of each round: started, asked for turns, and ended."""

from __future__ import annotations

import base64
import json
import os
import pickle
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from select import select
from tempfile import TemporaryDirectory
from types import TracebackType
from typing import Any

from ninefold.api import capsule
from ninefold.api.calls import note
from ninefold.api.child import environment
from ninefold.api.rounds import Turn
from ninefold.api.session import Session
from ninefold.errors import KILLED, Failure, ResourceError, resource_failure

POLL = 0.3  # seconds between two looks whether a process that does not answer is still there
GRACE = 5.0  # seconds that processes have to end by themselves at the end of a round


def take_rounds(session: Session, factories: Mapping[str, Callable[[], Any]]) -> None:
    """Let steps take turns, in processes that are new in each round, until the session ends."""
    with TemporaryDirectory(prefix="ninefold-steps-") as folder:
        path = Path(folder) / "objects.bin"
        parts = {f"steps[{name!r}]": factory for name, factory in factories.items()}
        kinds = {part: getattr(f, "__name__", type(f).__name__) for part, f in parts.items()}
        try:
            sha256 = capsule.write(path, parts, kinds)
        except OSError as error:
            found = "the factories of the steps are copied there for their processes"
            raise resource_failure(error, found, "make room, or set TMPDIR") from error
        with Workers(list(factories), path, sha256) as workers:
            session.begin()
            while not session.over:
                with session.starting():
                    workers.renew()
                while (block := session.block) is not None:
                    session.took([workers.take(turn) for turn in block])


class Workers:
    """One process for each step, all alive at once. They are gone at the end of the block.

    Each is a session of its own, so that Ctrl-C reaches this process alone, which ends them.
    """

    def __init__(self, names: list[str], path: Path, sha256: str) -> None:
        self._names, self._file = names, (str(path), sha256)
        self._processes: dict[str, subprocess.Popen[bytes]] = {}

    def __enter__(self) -> Workers:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        try:
            if error is None:
                self._end()
        finally:
            self._kill()

    def renew(self) -> None:
        """Start new processes in place of these; return when each has taken its step once."""
        self._end()
        for name in self._names:
            self._processes[name] = subprocess.Popen(
                [
                    *(sys.executable, "-m", "ninefold.api.worker"),
                    *(str(os.getpid()), *self._file, name),
                ],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                bufsize=0,
                env=environment(),
                start_new_session=True,
            )
        for name in self._names:
            self._answer(name)

    def take(self, turn: Turn) -> float:
        """Seconds of a timed call of a step in this turn. Raises what it raises."""
        stdin = self._processes[turn.step].stdin
        assert stdin is not None
        with suppress(BrokenPipeError):  # that it has ended is told by its answer
            stdin.write(json.dumps({"lead": turn.lead, "timed": turn.timed}).encode() + b"\n")
        return float(self._answer(turn.step)["seconds"])

    def _answer(self, name: str) -> dict[str, Any]:
        process = self._processes[name]
        assert process.stdout is not None
        line = b""
        while not line.endswith(b"\n"):
            ended = process.poll() is not None  # before the look: then all that it wrote is there
            if select([process.stdout], [], [], POLL)[0]:
                block = os.read(process.stdout.fileno(), 1 << 16)
                line += block
                ended = not block
            if ended:
                code = process.wait()
                kill_group(process)  # what it has started lives on
                raise gone(name, code)
        answer: dict[str, Any] = json.loads(line)
        if "copy" in answer:
            raise raised(name, answer)
        return answer

    def _end(self) -> None:
        """Have the processes end by themselves, those that do not by force."""
        for process in self._processes.values():
            assert process.stdin is not None
            process.stdin.close()
        deadline = time.monotonic() + GRACE
        for process in self._processes.values():
            with suppress(subprocess.TimeoutExpired):
                process.wait(max(0.0, deadline - time.monotonic()))
        self._kill()

    def _kill(self) -> None:
        """End the processes at once, with what they have started."""
        for process in self._processes.values():
            if process.poll() is None:
                kill_group(process)
        for process in self._processes.values():
            process.wait()
            for stream in (process.stdin, process.stdout):
                assert stream is not None
                stream.close()
        self._processes = {}


def kill_group(process: subprocess.Popen[bytes]) -> None:
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)


def raised(name: str, answer: Mapping[str, str]) -> Exception:
    """What a step raised in its process, of the same class where that can be copied."""
    copy: Any = None
    with suppress(Exception):
        copy = pickle.loads(base64.b64decode(answer["copy"]))
    error = copy if isinstance(copy, Exception) else RuntimeError(answer["text"])
    note(error, f"ninefold.time_steps: in the step {name!r}")
    if not isinstance(error, Failure):  # whose line says all
        note(error, f"In its process:\n{answer['traceback']}")
    return error


def gone(name: str, code: int) -> ResourceError:
    """The failure of a process that has ended without an answer."""
    field, value = f"steps[{name!r}]", f"exit code {code}"
    if code == -signal.SIGKILL:
        return ResourceError(
            field,
            value,
            f"{KILLED}; most often the kernel was short of memory, which all steps share; give "
            "fewer or smaller ones, see dmesg",
        )
    return ResourceError(
        field,
        value,
        "its process has ended; a step returns or raises; see what it printed on stderr",
    )
