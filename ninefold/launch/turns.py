"""Runs that are alive at the same time and train in turns, each in worker processes of its own.

Imported late, because it imports torch: see ninefold.launch.run.
"""

from __future__ import annotations

import os
import selectors
import signal
import socket
import tempfile
import threading
import time
from collections.abc import Sequence
from contextlib import ExitStack, suppress
from dataclasses import replace
from pathlib import Path
from types import TracebackType
from typing import Any

from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
from torch.distributed.launcher.api import elastic_launch

from ninefold.config.spec import RunSpec
from ninefold.errors import Failure, PeerError
from ninefold.launch import forkserver, mailbox, worker
from ninefold.launch.elastic import Left, first_failure, launch_config, quiet
from ninefold.launch.supervisor import TO_EXIT, Supervisor
from ninefold.process import scratch
from ninefold.train.channel import Channel

LOOK = 1.0  # seconds between elastic's looks at processes: each takes time from those that train
TO_START = 300.0  # seconds that processes have to build their run and to compile it
FIRST = 1800.0  # seconds that a turn of unknown length may take
PATIENCE = 60.0  # seconds that other turns may take beyond ten times the expected ones


class Paused:
    """A run whose processes wait, and train only in `turn`.

    Between turns those that compute on a CPU are stopped (SIGSTOP): an OpenMP thread that has
    nothing to do spins for milliseconds, on a core that the next process needs.

    spec: what it runs.
    free: bytes that were free on its fullest device when it was ready; None if unknown.
    """

    def __init__(self, spec: RunSpec, processes: int, folder: Path) -> None:
        self.spec = spec
        self.free: int | None = None
        self._processes, self._folder = processes, folder
        self._channels: dict[int, Channel] = {}
        self._pids: list[int] = []
        self._failure: Failure | None = None
        self._thread = threading.Thread(target=self._launch, daemon=True)
        folder.mkdir()
        self._thread.start()

    @property
    def ready(self) -> bool:
        """Whether all its processes wait for a turn."""
        return len(self._channels) == self._processes

    def connect(self, channel: Channel, rank: int, pid: int | None, free: int | None) -> None:
        """Take the connection of a process that is ready; the last one stops them all.

        pid: of a process that may be stopped.
        """
        self._channels[rank] = channel
        if pid is not None:
            self._pids.append(pid)
        if free is not None:
            self.free = free if self.free is None else min(free, self.free)
        if self.ready:
            self._signal(signal.SIGSTOP)

    def turn(
        self, lead: int, steps: int, expected: float | None = None, counted: bool = True
    ) -> float:
        """Train `lead` steps and then `steps` timed ones; return the seconds of one of these.

        Of several processes it is the slowest one's. expected: seconds of the turn, if known; a
        process that takes far longer is taken to hang. counted: whether its steps and energy enter
        the result. Raises Failure if one hangs or has ended, and at any later call.
        """
        within = FIRST if expected is None else 10 * expected + PATIENCE
        answers = self._ask(within, lead=lead, steps=steps, counted=counted)
        return float(max(answer["seconds"] for answer in answers))

    def end(self, turns: Sequence[float], stretch: float | None) -> None:
        """Have rank 0 write a result with the seconds per step of each turn; there are no more.

        stretch: seconds per step of a long stretch. Raises Failure.
        """
        self._ask(TO_START, turns=list(turns), stretch=stretch)

    def processes(self) -> list[int]:
        """The ids of its processes."""
        return list(mailbox.workers(self._folder).values())

    def require_alive(self) -> None:
        """Raise the failure of a run whose processes have ended."""
        if not self._thread.is_alive():
            raise self._cause()

    def close(self) -> None:
        """Close the connections, which ends processes that wait for a turn and are not stopped."""
        for channel in self._channels.values():
            channel.close()
        self._channels.clear()
        self._pids.clear()

    def kill(self) -> None:
        """Kill the processes that are left: they hold nothing worth saving."""
        self.close()
        mailbox.tell_to_stop(self._folder, signal.SIGTERM)  # for those that have not started yet
        for process in mailbox.workers(self._folder).values():
            with suppress(ProcessLookupError):
                os.kill(process, signal.SIGKILL)

    def finish(self) -> None:
        """Kill the idle processes and wait until they have ended, at most ten looks each.

        If they returned, each would live until elastic's next look collects what it returned.
        """
        channels = list(self._channels.values())
        self._channels.clear()
        if channels:  # else they were killed already
            self.kill()
        for channel in channels:
            channel.await_end(10 * LOOK)
            channel.close()

    def wait(self) -> None:
        """Wait until elastic has seen that the processes ended."""
        self._thread.join(10 * LOOK)

    def _ask(self, within: float, **message: Any) -> list[dict[str, Any]]:
        """Send a message to all processes and return their answers, due in `within` seconds."""
        answers, left = [], within
        with selectors.DefaultSelector() as waiting:
            for channel in self._channels.values():
                waiting.register(channel, selectors.EVENT_READ)
            self._signal(signal.SIGCONT)
            for channel in self._channels.values():
                channel.send(**message)
            while waiting.get_map():
                ready = waiting.select(min(left, LOOK))
                for key, _ in ready:
                    channel = key.fileobj  # type: ignore[assignment]
                    answer = channel.receive()
                    if answer is None:
                        raise self._cause()
                    answers.append(answer)
                    waiting.unregister(channel)
                # Not by a clock: it would count the time that ^Z stops this process.
                left -= 0 if ready else LOOK
                if left <= 0:
                    raise self.given_up(within)
        self._signal(signal.SIGSTOP)
        return answers

    def _signal(self, number: int) -> None:
        """Stop its processes, or let them go on."""
        for pid in self._pids:
            with suppress(ProcessLookupError):
                os.kill(pid, number)

    def given_up(self, seconds: float) -> PeerError:
        """Kill processes that did not answer within `seconds`; return the failure to raise."""
        self.kill()
        return PeerError(
            "study.ask",
            "time",
            f"{self.spec.folder.name} did not answer in {seconds:.0f} s; its log is in "
            f"{self.spec.folder}; see what it was doing, and resume the study",
        )

    def _cause(self) -> Failure:
        """Why a process has ended, once elastic has seen it; kills what is left."""
        self._thread.join(TO_EXIT + LOOK)
        self.kill()
        self.wait()
        return self._failure or Failure(
            "study.ask",
            "time",
            f"a process of {self.spec.folder.name} ended; its log is in {self.spec.folder}; "
            "please report it",
        )

    def _launch(self) -> None:
        """In a thread: start the processes with torch elastic and wait for them."""
        config = launch_config(self._processes, self._folder / "elastic", max_restarts=0, look=LOOK)
        nobody = Supervisor(self._folder, self.spec.grace)  # signals come to the main thread
        try:
            elastic_launch(config, worker.work)(replace(self.spec, mailbox=self._folder))
        except (ChildFailedError, Left) as error:
            self._failure = first_failure(nobody, self._folder, error, self.spec)
        except Exception as error:
            self._failure = worker.failure_of(error, self.spec.folder, 0)


class Turns:
    """Starts runs that take turns, and kills those that are left when its `with` block ends."""

    def __enter__(self) -> Turns:
        self._stack = ExitStack()
        self._folder = Path(self._stack.enter_context(tempfile.TemporaryDirectory(dir=scratch())))
        forkserver.require_semaphores()
        self._stack.enter_context(quiet())
        self._listener = self._stack.enter_context(socket.socket(socket.AF_UNIX))
        self._listener.bind(str(self._folder / "turns"))
        self._listener.listen(128)
        self._runs: list[Paused] = []
        self._alive: list[Paused] = []
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        for run in self._alive:
            run.kill()
        for run in self._runs:
            run.wait()
        self._stack.close()

    def begin(self, spec: RunSpec, processes: int) -> Paused:
        """Start the processes of a run; see `wait`."""
        spec = replace(spec, turns=self._folder / "turns")
        run = Paused(spec, processes, self._folder / str(len(self._runs)))
        self._runs.append(run)
        self._alive.append(run)
        return run

    def clear(self) -> None:
        """Kill the processes of all runs and wait until they have ended."""
        for run in self._alive:
            run.finish()
        self._alive.clear()

    def wait(self, run: Paused) -> None:
        """Wait until the processes of `run` wait for a turn. Raises the failure of one of them."""
        deadline = time.monotonic() + TO_START
        self._listener.settimeout(0.1)
        while not run.ready:
            try:
                connection, _ = self._listener.accept()
            except TimeoutError:
                run.require_alive()
                if time.monotonic() > deadline:
                    raise run.given_up(TO_START) from None
                continue
            connection.setblocking(True)
            channel = Channel(connection)
            message = channel.receive()
            if message is None:
                continue
            whose = self._runs[int(message["run"])]
            whose.connect(channel, message["rank"], message["pid"], message["free"])
