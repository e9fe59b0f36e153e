"""Sweeps run by another Hydra sweeper or launcher (Optuna, joblib): signals to their runs.

Hydra gives its callback and the processes of such a launcher nothing of ours. So the callback makes
a folder, named in the environment: it says which sweep there is, and concurrent runs register in
it, as workers do with their launcher (launch.mailbox). A launcher kills its processes when the
command is interrupted, so the command first signals the runs and waits for them to save.
"""

from __future__ import annotations

import atexit
import json
import os
import shutil
import signal
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from multiprocessing import resource_tracker
from pathlib import Path
from types import FrameType

from ninefold import signals
from ninefold.launch import forkserver, mailbox

VARIABLE = "NINEFOLD_SWEEP"  # names the folder, to this process and to those that inherit it
FILE = "sweep.json"
PATIENCE = 5.0  # seconds that runs have to end in addition to `grace`


@dataclass(frozen=True)
class Announced:
    """A sweep as the callback has announced it.

    mailbox: the folder in which its concurrent runs register.
    sweep: its own folder; None if its sweeper sets Command.sweep itself.
    study_name: the chosen option of `experiments`, if any.
    grace: seconds that a run has to save after a signal.
    concurrent: whether its runs are in other processes, at the same time.
    """

    mailbox: Path
    sweep: Path | None
    study_name: str | None
    grace: float
    concurrent: bool

    def stop(self, number: int) -> int:
        """Signal the runs to save and exit, and wait for them. Returns how many were signaled."""
        notified = 0
        deadline = time.monotonic() + self.grace + PATIENCE
        mailbox.tell_to_stop(self.mailbox, number)
        for process in mailbox.workers(self.mailbox).values():
            with suppress(ProcessLookupError):
                # Not SIGINT: a terminal has sent that to all, and a second one would kill.
                os.kill(process, signal.SIGTERM)
                notified += 1
        while mailbox.workers(self.mailbox) and time.monotonic() < deadline:
            time.sleep(0.05)
        return notified


def announce(sweep: Path | None, study_name: str | None, grace: float, concurrent: bool) -> None:
    """In the callback: announce a sweep to the command and its runs."""
    folder = Path(tempfile.mkdtemp(prefix="ninefold-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    place = None if sweep is None else str(sweep)
    (folder / FILE).write_text(json.dumps([place, study_name, grace, concurrent]))
    os.environ[VARIABLE] = str(folder)
    if concurrent:
        with signals.held_back(), forkserver.prepended(*forkserver.QUIET):
            resource_tracker.ensure_running()  # it cleans up after processes that are killed


def announced() -> Announced | None:
    """The sweep that this command or its parent has announced."""
    folder = Path(os.environ.get(VARIABLE) or os.devnull)
    try:
        sweep, study_name, grace, concurrent = json.loads((folder / FILE).read_text())
    except OSError:  # there is none, or it is on another host
        return None
    return Announced(folder, None if sweep is None else Path(sweep), study_name, grace, concurrent)


@contextmanager
def registered() -> Iterator[None]:
    """Register a run in a process of another launcher, so that the command can signal it.

    Raises SystemExit if the command received a signal before.
    """
    sweep, me = announced(), os.getpid()
    if sweep is None:
        yield
        return
    mailbox.register(sweep.mailbox, me, 0)
    try:
        if (code := mailbox.final(sweep.mailbox, ())) is not None:
            raise SystemExit(code)
        yield
    finally:
        for number in signals.heeded():  # its launcher would end all runs if this process ended
            signal.signal(number, _wait)
        mailbox.unregister(sweep.mailbox, me, 0)


def _wait(number: int, frame: FrameType | None) -> None:
    """Ignore a signal: the launcher ends this process."""
