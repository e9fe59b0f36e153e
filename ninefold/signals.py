"""Being told to stop: a signal to any process of a run ends all of them after the same step."""

from __future__ import annotations

import ctypes
import os
import signal
import socket
import struct
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Any

from ninefold.errors import Interrupted, Preempted

SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGUSR1, signal.SIGHUP, signal.SIGQUIT)
IGNORED = (signal.SIG_IGN, None)
_STEP = struct.Struct("=q")
_PR_SET_PDEATHSIG = 1


def follow_parent(parent: int | None = None) -> None:
    """Have the kernel send SIGKILL to this process when its parent dies (Linux only).

    parent: its process id as the parent knows it. Without it, a parent that died before this call
    goes unnoticed: the process then already has another one.
    """
    if not sys.platform.startswith("linux"):
        return
    if parent is None:
        parent = os.getppid()
    if ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "prctl(PR_SET_PDEATHSIG)")
    if os.getppid() != parent:  # it died before the kernel knew
        os.kill(os.getpid(), signal.SIGKILL)


def heeded() -> dict[signal.Signals, Any]:
    """The handlers of those SIGNALS that are not ignored: one that is stays so (nohup)."""
    handlers = {number: signal.getsignal(number) for number in SIGNALS}
    return {number: handler for number, handler in handlers.items() if handler not in IGNORED}


def failure(number: int) -> type[Preempted | Interrupted]:
    """How a run ends that signal `number` stopped: Ctrl-C is a person, the others a scheduler."""
    return Interrupted if number == signal.SIGINT else Preempted


@contextmanager
def held_back() -> Iterator[None]:
    """SIGNALS wait while this lasts, and do not reach a program that is started in here."""
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, SIGNALS)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)


class Stop:
    """Whether this process has been told to stop, and after which step the run will.

    signal: the first signal that this process received, 0 as long as there is none.

    The processes of one host agree through a few bytes in `notice`, without a collective: one that
    is told writes down the step after the coming one before it begins that, and no other can end
    it before, as its gradients take part in it. None: there is one process, or there are several
    hosts; those agree at log points and at the end of evaluations. So do processes with a GPU each:
    they queue steps, and one may have queued some that another has not begun.
    """

    def __init__(self, notice: Path | None = None, alone: bool = True) -> None:
        self.signal = 0
        self._alone = alone
        self._file = None if notice is None else os.open(notice, os.O_RDWR | os.O_CREAT, 0o600)

    def only_at_log_points(self) -> None:
        """From here on decide there, as several hosts do; one process alone does after any step."""
        if self._file is not None:
            os.close(self._file)
            self._file = None

    @property
    def wanted(self) -> bool:
        """Whether this process or one that it shares a notice with was told to stop."""
        return bool(self.signal or self._noticed())

    def due(self, step: int) -> bool:
        """Whether the run is to stop now that it has taken `step` steps."""
        if self._alone:
            return bool(self.signal)
        if self._file is None:
            return False
        last = self._noticed()
        if self.signal and not last:
            os.pwrite(self._file, _STEP.pack(step + 1), 0)
        return 0 < last <= step

    def _noticed(self) -> int:
        """The step to stop after; 0 if there is no notice."""
        content = b"" if self._file is None else os.pread(self._file, _STEP.size, 0)
        return int(_STEP.unpack(content)[0]) if content else 0

    @contextmanager
    def listening(self, seconds: float, inline: bool = False) -> Iterator[None]:
        """Take note of signals in here. `seconds` after the first the process ends, come what may.

        A thread reads the signals from the interpreter's wakeup descriptor, because the main
        thread may be waiting in a collective for a process that is gone, and would never get to
        run a handler. Inline there is no launcher to turn to: a second Ctrl-C interrupts at once.
        """
        reader, writer = socket.socketpair()
        writer.setblocking(False)
        before = heeded()
        interrupts = 0

        def handle(number: int, frame: FrameType | None) -> None:
            nonlocal interrupts
            interrupts += number == signal.SIGINT
            if inline and interrupts > 1:
                raise KeyboardInterrupt

        def listen() -> None:
            while numbers := reader.recv(16):
                for number in numbers:
                    if number in before and not self.signal:
                        self.signal = number
                        if not inline:
                            timer = threading.Timer(seconds, os._exit, (failure(number).code,))
                            timer.daemon = True
                            timer.start()

        fd = signal.set_wakeup_fd(writer.fileno(), warn_on_full_buffer=False)
        thread = threading.Thread(target=listen, daemon=True)
        thread.start()
        for number in before:
            signal.signal(number, handle)
        # The forkserver holds signals back, so that none is lost before this moment.
        signal.pthread_sigmask(signal.SIG_UNBLOCK, SIGNALS)
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)
            signal.set_wakeup_fd(fd)
            writer.close()
            thread.join()
            reader.close()
