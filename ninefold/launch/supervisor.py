"""Forward signals to the workers and kill those that do not exit in time."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Collection
from contextlib import suppress
from pathlib import Path

from ninefold.errors import Interrupted, PeerError, Preempted
from ninefold.launch import mailbox
from ninefold.signals import handled

STOPS = {Preempted.__name__, Interrupted.__name__}
TO_EXIT = 2.0  # seconds that workers have to exit after one of them has failed
HUNG_SECONDS = 3.0  # seconds in which all peers of a hung process must report that it is missing


class Supervisor:
    """Supervises the workers that report to `folder` while its `with` block lasts.

    signal: the first signal that the launcher received, or None. It is forwarded to the workers,
        which are killed `grace` seconds later, or at once by a second SIGINT. A signal that was
        ignored stays ignored (nohup ignores SIGHUP).
    hung: ranks, in the newest attempt, that were killed because their peers timed out waiting for
        them.
    """

    def __init__(self, folder: Path, grace: float) -> None:
        self.signal: int | None = None
        self.hung: set[int] = set()
        self._folder = folder
        self._attempt, self._pids = 0, dict[int, int]()
        self._grace = grace
        self._deadline = float("inf")
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)

    def __enter__(self) -> Supervisor:
        self._handled = handled(self._receive)
        self._handled.__enter__()
        self._thread.start()
        return self

    def __exit__(self, *raised: object) -> None:
        self._handled.__exit__(None, None, None)
        self._over.set()
        self._thread.join()

    def supervise(self, pids: dict[int, int], attempt: int) -> None:
        """Supervise the workers with these process ids, by rank, from now on."""
        self._pids, self._attempt = pids, attempt
        if self.signal is not None:  # it came while they were being started
            self._send(self.signal)

    def _receive(self, number: int, first: bool) -> None:
        if self.signal is None:
            self.signal = number
            self._deadline = time.monotonic() + self._grace
            mailbox.tell_to_stop(self._folder, number)
            self._send(number)
        elif number == signal.SIGINT:
            self._send(signal.SIGKILL)

    def _watch(self) -> None:
        while not self._over.wait(0.1):
            if time.monotonic() > self._deadline:
                self._send(signal.SIGKILL)
            self._end_stuck()

    def _end_stuck(self) -> None:
        """Kill the workers that do not exit after a failure; elastic would wait 30 s for them.

        Of a hung worker all its peers report that it is missing. When a worker has failed, its
        peers may wait for it in a kernel of NCCL, which nothing but SIGKILL ends; they cannot save
        without it.
        """
        found = mailbox.latest(self._folder, self._attempt)
        if not found:
            self.hung.clear()  # of an attempt before this one
            return
        causes = [report for report in found if report.kind != PeerError.__name__]
        if any(report.kind in STOPS for report in causes):
            return
        if time.time() < (causes or found)[0].time + (TO_EXIT if causes else HUNG_SECONDS):
            return
        killed = self._send(signal.SIGKILL, but={report.rank for report in found})
        if not causes:
            self.hung |= killed

    def _send(self, number: int, but: Collection[int] = ()) -> set[int]:
        """Send a signal to all workers except `but`; returns the ranks that received it."""
        reached = set()
        for rank, process in self._pids.items():
            if rank not in but:
                with suppress(ProcessLookupError):  # it has ended
                    os.kill(process, number)
                    reached.add(rank)
        return reached
