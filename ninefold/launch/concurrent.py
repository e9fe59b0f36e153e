"""Runs beside each other, in processes of another launcher than Hydra's own: how they are stopped.

Such a launcher kills its processes when the command is interrupted. So the command tells the runs
first, and waits for them. They find each other as workers and their launcher do: launch.mailbox.
"""

from __future__ import annotations

import os
import shutil
import signal
import tempfile
import time
import weakref
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from multiprocessing import resource_tracker
from pathlib import Path
from types import FrameType

from ninefold import signals
from ninefold.launch import forkserver, mailbox

VARIABLE = "NINEFOLD_BESIDE"  # names the folder to processes that inherit it
PATIENCE = 5.0  # seconds that runs have to end beyond those that they have to save


class Runs:
    """The command's side. grace: seconds that a run has to save. told: how many were to stop."""

    def __init__(self, grace: float) -> None:
        self.told = 0
        self._grace = grace
        self._folder = Path(tempfile.mkdtemp(prefix="ninefold-"))
        weakref.finalize(self, shutil.rmtree, self._folder, ignore_errors=True)
        os.environ[VARIABLE] = str(self._folder)
        with signals.held_back(), forkserver.prepended(*forkserver.QUIET):
            resource_tracker.ensure_running()  # it tidies up after the processes that are killed

    def stop(self, number: int) -> None:
        """Have the runs that there are save and end, and none begin any more; waits for them."""
        deadline = time.monotonic() + self._grace + PATIENCE
        mailbox.tell_to_stop(self._folder, number)
        for process in mailbox.workers(self._folder).values():
            with suppress(ProcessLookupError):
                # Not SIGINT: a terminal has sent that to all, and a second one would kill.
                os.kill(process, signal.SIGTERM)
                self.told += 1
        while mailbox.workers(self._folder) and time.monotonic() < deadline:
            time.sleep(0.05)


@contextmanager
def registered() -> Iterator[None]:
    """A run's side: it is told to stop in here. Raises SystemExit if the command was already."""
    folder, me = Path(os.environ.get(VARIABLE, os.devnull)), str(os.getpid())
    if not folder.is_dir():  # it is on another host, perhaps
        yield
        return
    mailbox.register(folder, me, 0)
    try:
        if (code := mailbox.final(folder, ())) is not None:
            raise SystemExit(code)
        yield
    finally:
        for number in signals.heeded():  # its launcher would end all runs if this process ended
            signal.signal(number, _wait)
        mailbox.unregister(folder, me, 0)


def _wait(number: int, frame: FrameType | None) -> None:
    """Leave it to the launcher when this process ends."""
