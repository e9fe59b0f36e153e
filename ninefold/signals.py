"""Signal handling: a signal to any process stops all processes of a run after the same step."""

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
from ninefold.files import opener

SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGUSR1, signal.SIGHUP, signal.SIGQUIT)
IGNORED = (signal.SIG_IGN, None)
_STEP = struct.Struct("=q")
_PR_SET_PDEATHSIG = 1


def follow_parent(parent: int | None = None, number: int = signal.SIGKILL) -> None:
    """Have the kernel send a signal to this process when its parent dies (Linux only).

    parent: its process id as the parent knows it. Without it, a parent that died before this call
    goes unnoticed: the process then already has another one.
    """
    if not sys.platform.startswith("linux"):
        return
    if parent is None:
        parent = os.getppid()
    if ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, number, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "prctl(PR_SET_PDEATHSIG)")
    if os.getppid() != parent:  # it died before prctl took effect
        os.kill(os.getpid(), number)


def heeded() -> dict[signal.Signals, Any]:
    """The handlers of those SIGNALS that are not ignored (nohup ignores SIGHUP)."""
    handlers = {number: signal.getsignal(number) for number in SIGNALS}
    return {number: handler for number, handler in handlers.items() if handler not in IGNORED}


def failure(number: int) -> type[Preempted | Interrupted]:
    """The failure that signal `number` causes: Ctrl-C is a person, the others a scheduler."""
    return Interrupted if number == signal.SIGINT else Preempted


@contextmanager
def held_back() -> Iterator[None]:
    """Block SIGNALS while the block runs, also in programs that it starts."""
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, SIGNALS)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)


class Stop:
    """Whether a signal has asked this process to stop, and after which step the run stops.

    signal: the first signal that this process received, 0 before that.

    The processes of one host agree through a few bytes in the file `notice`, without a collective.
    A process that receives a signal after step n writes n + 2 as the last step, before it starts
    step n + 1. No peer can finish n + 1 without its gradients, so all peers read the notice in
    time. Without `notice` there is one process, or there are several hosts; those agree at log
    points and at the end of evaluations. So do processes with a GPU each: they queue steps, and one
    may have queued some that another has not begun.
    """

    def __init__(self, notice: Path | None = None, alone: bool = True) -> None:
        self.signal = 0
        self._alone = alone
        self._file = None if notice is None else opener(notice, os.O_RDWR | os.O_CREAT, 0o600)

    def only_at_log_points(self) -> None:
        """Agree on stopping at log points from now on, as several hosts do."""
        if self._file is not None:
            os.close(self._file)
            self._file = None

    @property
    def wanted(self) -> bool:
        """Whether this process, or one that it shares a notice with, received a signal."""
        return bool(self.signal or self._noticed())

    def due(self, step: int) -> bool:
        """Whether the run is to stop now, after `step` steps."""
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
        """Record signals while the block runs. The process is killed `seconds` after the first one.

        A thread reads the signals from the interpreter's wakeup descriptor, because the main
        thread may be waiting in a collective for a process that is gone, and would never get to
        run a handler. Inline there is no launcher to do it: a second Ctrl-C interrupts at once.
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
        # The forkserver blocks signals, so that none is lost before this moment.
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
