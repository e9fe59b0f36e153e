"""Worker processes that steps start, such as a DataLoader's: stopped while others have turns."""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from multiprocessing import active_children
from multiprocessing.process import BaseProcess
from threading import Timer

STUCK_SECONDS = 5.0  # beyond twice the expected ones, after which a turn is taken to be stuck
RAN_ON = (
    "Worker processes ran on between turns: the wait for what they read ahead is missing "
    "from these times."
)


class StepWorkers:
    """Stops the worker processes of each step between its turns (SIGSTOP, on Linux).

    What they read ahead meanwhile would cost their step nothing, and take time from the others. A
    step's are those that this process forks by multiprocessing while it has a turn. They are not
    stopped before each step has had a turn, in which it may be compiled.

    run_on: whether some are not stopped: they were there before, were not forked, or are used by
        several steps. Once a turn is stuck, as it waits for those of another step, all run on.
    """

    def __init__(self, names: Sequence[str]) -> None:
        self._of: dict[str, list[BaseProcess]] = {name: [] for name in names}
        self._known = {*active_children()}
        self._each: dict[str, float] = {}  # seconds of a step in its last turn
        self._shared = False
        self.run_on = bool(self._known)

    @contextmanager
    def turn(self, name: str, steps: int) -> Iterator[None]:
        """Let those of a step run while the block does, in which it takes so many steps."""
        self._signal(self._of[name], stop=False)
        stuck = Timer(STUCK_SECONDS + 2 * steps * self._each.get(name, 0.0), self._share)
        if any(workers for of, workers in self._of.items() if of != name) and not self._shared:
            stuck.start()
        began = time.monotonic()
        try:
            yield
        finally:
            stuck.cancel()
            if stuck.ident is not None:
                stuck.join()
        self._each[name] = (time.monotonic() - began) / steps
        self._find(name)
        if len(self._each) == len(self._of) and not self._shared:
            self._signal(self._all(), stop=True)

    def close(self) -> None:
        """Let all go on, in the process group that they were in."""
        self._signal(self._all(), stop=False)
        for worker in self._all():
            move(worker, os.getpgrp())

    def _all(self) -> list[BaseProcess]:
        return [worker for workers in self._of.values() for worker in workers]

    def _find(self, name: str) -> None:
        """Look which have ended, and which this step has started."""
        alive = {*active_children()}
        for workers in self._of.values():
            workers[:] = [worker for worker in workers if worker in alive]
        for worker in alive - self._known:
            if move(worker):
                self._of[name].append(worker)
            else:
                self.run_on = True
        self._known = alive

    def _share(self) -> None:
        self._shared = self.run_on = True
        self._signal(self._all(), stop=False)

    def _signal(self, workers: Sequence[BaseProcess], stop: bool) -> None:
        for worker in workers:
            if worker.is_alive():  # else its id may be another's
                assert worker.pid is not None
                os.killpg(worker.pid, signal.SIGSTOP if stop else signal.SIGCONT)


def move(worker: BaseProcess, group: int = 0) -> bool:
    """Move a worker to a process group, by default its own; return whether it is there.

    If this process is killed, the kernel sends SIGHUP and SIGCONT to stopped workers that have a
    group of their own; in the group of this process they might stay for ever. Only a worker that
    was forked can be moved.
    """
    if sys.platform != "linux":
        return False
    assert worker.pid is not None
    with suppress(OSError):
        os.setpgid(worker.pid, group)
        return True
    return False
