"""Runs that another launcher of Hydra's makes at the same time (joblib, submitit): signals.

Hydra gives the processes of such a launcher nothing of ours. So the command makes a folder, named
in the environment, in which concurrent runs register. A launcher kills its processes when the
command is interrupted, so the command first tells the runs, by a file in that folder, and waits for
them to save. They may be on other hosts, where the number of a process means another one: so each
run looks for the file and signals itself.
"""

from __future__ import annotations

import atexit
import json
import os
import shutil
import signal
import tempfile
import threading
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import FrameType

from ninefold import signals
from ninefold.launch import mailbox
from ninefold.process import scratch, starting, until

VARIABLE = "NINEFOLD_SWEEP"  # names the folder, to this process and to those that inherit it
FILE = "announced.json"
RUNS = ".runs-"  # the beginning of the folder's name
RUN = "run-"  # a file for each concurrent run
END_SECONDS = 5.0  # seconds that runs have to end in addition to `grace`
POLL_SECONDS = 0.5  # seconds between a run's looks for the signal


@dataclass(frozen=True)
class Announced:
    """A sweep as its command has announced it.

    mailbox: the folder in which its runs register.
    grace: seconds that a run has to save after a signal.
    """

    mailbox: Path
    grace: float

    def stop(self, number: int) -> int:
        """Tell the runs to save and exit, and wait for them. Returns how many there were."""
        mailbox.tell_to_stop(self.mailbox, number)
        told = len(self._runs())
        until(lambda: not self._runs(), self.grace + END_SECONDS)
        return told

    def _runs(self) -> list[Path]:
        return list(self.mailbox.glob(RUN + "*"))


def announce(grace: float, shared: Path | None = None) -> None:
    """In a command: announce its sweep to the runs.

    shared: a folder that the runs see; None if they are all on this host.
    """
    if shared is not None:
        shared.mkdir(parents=True, exist_ok=True)
    folder = Path(tempfile.mkdtemp(prefix=RUNS, dir=shared or scratch()))
    if shared is not None:
        atexit.register(_remove, folder)
    (folder / FILE).write_text(json.dumps(grace))
    os.environ[VARIABLE] = str(folder)
    with starting():
        pass  # only multiprocessing's resource tracker, which all runs then have in common


def _remove(folder: Path) -> None:
    """At the end of the command, unless runs that wait in a queue are still to find `stop`."""
    if not (folder / mailbox.STOP).exists():
        shutil.rmtree(folder, ignore_errors=True)


def announced() -> Announced | None:
    """The sweep that this command or its parent has announced."""
    folder = Path(os.environ.get(VARIABLE) or os.devnull)
    try:
        return Announced(folder, json.loads((folder / FILE).read_text()))
    except OSError:  # there is none, or it is on another host
        return None


@contextmanager
def registered() -> Iterator[None]:
    """Register a run in a process of another launcher, so that the command can tell it to stop.

    Raises SystemExit if the command received a signal before.
    """
    sweep = announced()
    if sweep is None:
        yield
        return
    mine = sweep.mailbox / f"{RUN}{uuid.uuid4().hex}"
    mine.touch()
    over = threading.Event()
    looking = threading.Thread(target=_look, args=(sweep.mailbox, over), daemon=True)
    try:
        if (code := mailbox.final(sweep.mailbox, ())) is not None:
            raise SystemExit(code)
        looking.start()
        yield
    finally:
        for number in signals.heeded():  # its launcher would end all runs if this process ended
            signal.signal(number, _wait)
        over.set()
        mine.unlink(missing_ok=True)


def _look(folder: Path, over: threading.Event) -> None:
    """Signal this process once the command has told its runs to stop."""
    while not over.wait(POLL_SECONDS):
        if mailbox.final(folder, ()) is not None:
            # Not SIGINT: a terminal has sent that to all, and a second one would kill.
            os.kill(os.getpid(), signal.SIGTERM)
            return


def _wait(number: int, frame: FrameType | None) -> None:
    """Ignore a signal: the launcher ends this process."""
