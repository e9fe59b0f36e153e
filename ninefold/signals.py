"""Signal handling: a signal to any process stops all processes of a run after the same step."""

from __future__ import annotations

import ctypes
import itertools
import math
import os
import signal
import socket
import struct
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Any, NoReturn

from ninefold.errors import Failure, Interrupted, Preempted
from ninefold.files import opener

Handler = Callable[[int, bool], None]

SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGUSR1, signal.SIGHUP, signal.SIGQUIT)
IGNORED = (signal.SIG_IGN, None)
_STEP = struct.Struct("=q")
_PR_SET_PDEATHSIG = 1
_LIBC = ctypes.CDLL(None, use_errno=True)  # here, as a forked process should not load anything


def follow_parent(parent: int | None = None) -> None:
    """Have the kernel kill this process when its parent dies (Linux only).

    parent: its process id as the parent knows it. Without it, a parent that died before this call
    goes unnoticed: the process then already has another one.
    """
    if not sys.platform.startswith("linux"):
        return
    if parent is None:
        parent = os.getppid()
    if _LIBC.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "prctl(PR_SET_PDEATHSIG)")
    if os.getppid() != parent:  # it died before prctl took effect
        os.kill(os.getpid(), signal.SIGKILL)


def active_handlers() -> dict[signal.Signals, Any]:
    """The present handler of each of the SIGNALS, without those ignored (as nohup does SIGHUP)."""
    handlers = {number: signal.getsignal(number) for number in SIGNALS}
    return {number: handler for number, handler in handlers.items() if handler not in IGNORED}


def failure(number: int) -> type[Preempted | Interrupted]:
    """The failure that signal `number` causes: Ctrl-C is a person, the others a scheduler."""
    return Interrupted if number == signal.SIGINT else Preempted


def name_of(number: int) -> str:
    """SIGTERM and the like; a real-time signal has a number alone."""
    return signal.Signals(number).name if number in {*signal.Signals} else f"signal {number}"


class _Process:
    """What this process knows of signals.

    order: numbers those that come to handlers installed by `handle` or `handled`.
    first: the first of these; None before that.
    own: its id, once it handles signals; a forked one has another.
    ends: whether it ignores signals until its end.
    forker: the id of the process that forks.
    from_main: whether the fork that is under way is by its main thread.
    mask: the signals that the thread which forks had blocked.
    """

    order = itertools.count()
    first: int | None = None
    own: int | None = None
    forker: int | None = None
    ends = False
    from_main = False
    mask: set[int] = set()  # noqa: RUF012


def handle(handler: Handler) -> None:
    """Call `handler(number, first)` for each of the SIGNALS that is not ignored, from now on.

    first: whether this process received none before, whichever handler took it. One signal may
    come while the handler of another runs: exactly one of the two is the first.
    Not in processes that any code forks from this one, see `reset_signals_in_forks`.
    """
    reset_signals_in_forks()

    def receive(number: int, frame: FrameType | None) -> None:
        if first := next(_Process.order) == 0:
            _Process.first = number
        handler(number, first)

    for number in active_handlers():
        signal.signal(number, receive)


def received() -> int | None:
    """The first signal that this process received, whichever handler of ours took it."""
    return _Process.first


def exit_until_handled() -> None:
    """Exit with the documented code if a signal comes before the command handles it."""

    def exit_now(number: int, frame: FrameType | None) -> None:
        kind, name = failure(number), signal.Signals(number).name
        print(
            kind("signal", name, "interrupted", "nothing runs yet", "start again"), file=sys.stderr
        )
        os._exit(kind.code)

    for number in active_handlers():
        signal.signal(number, exit_now)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, SIGNALS)  # see api/child.py


def restore_default_handlers(interrupt: Any = signal.default_int_handler) -> None:
    """Have SIGNALS do what they do where nothing handles them. interrupt: handles SIGINT."""
    for number in active_handlers():
        signal.signal(number, interrupt if number == signal.SIGINT else signal.SIG_DFL)


def interrupt(number: int, frame: FrameType | None) -> NoReturn:
    """Raise KeyboardInterrupt as our handlers do, see `by_signal`."""
    raise KeyboardInterrupt(number)


def ignore() -> None:
    """Ignore SIGNALS until this process ends, which it is about to, also where `handled` ends."""
    _Process.ends = True
    for number in SIGNALS:
        signal.signal(number, signal.SIG_IGN)


def reset_signals_in_forks() -> None:
    """After a fork, by any code, restore default handlers and unblock all signals in the child.

    Else Pool.terminate() would wait for ever for children in which SIGTERM does what it does here.
    On Linux they end with this process, unless another thread than the main one forks them, whose
    own end the kernel would take for it. So do the children that these fork.
    """
    if _Process.own is None:
        os.register_at_fork(
            before=_before_fork, after_in_parent=_after_fork, after_in_child=_as_python_begins
        )
    if _Process.own != os.getpid():
        _forget()


@contextmanager
def handled(handler: Handler) -> Iterator[None]:
    """Call `handler` as `handle` has it done, while the block runs."""
    before, own = active_handlers(), _Process.own
    handle(handler)
    try:
        yield
    finally:
        _Process.own = own or 0
        for number, previous in before.items() if not _Process.ends else ():
            signal.signal(number, previous)


def _before_fork() -> None:
    # Until the child has handlers of its own: a signal to it would else be told to this process,
    # through the wakeup descriptor that they share.
    _Process.mask = signal.pthread_sigmask(signal.SIG_BLOCK, SIGNALS)
    _Process.forker = os.getpid()
    _Process.from_main = threading.current_thread() is threading.main_thread()


def _after_fork() -> None:
    signal.pthread_sigmask(signal.SIG_SETMASK, _Process.mask)


def _as_python_begins() -> None:
    parent, _Process.own = _Process.own, 0
    if parent != _Process.forker:  # not a child of the process that handles signals
        _after_fork()
        return
    _forget()
    signal.set_wakeup_fd(-1)
    restore_default_handlers()
    signal.pthread_sigmask(signal.SIG_UNBLOCK, SIGNALS)
    if _Process.from_main:
        follow_parent(parent)


def _forget() -> None:
    """Begin as a process that has received no signal."""
    _Process.own, _Process.order, _Process.first = os.getpid(), itertools.count(), None
    _Process.ends = False


@contextmanager
def held_back() -> Iterator[None]:
    """Block SIGNALS while the block runs, also in programs that it starts."""
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, SIGNALS)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)


def later(seconds: float, call: Callable[[], None]) -> threading.Timer:
    """Call `call` in so many seconds, in a thread, unless the timer is cancelled or this exits."""
    timer = threading.Timer(min(seconds, threading.TIMEOUT_MAX), call)
    timer.daemon = True
    timer.start()
    return timer


class Stop:
    """Whether a signal has asked this process to stop, and after which step the run stops.

    signal: the first signal that this process received, 0 before that.
    tell: called with the failure of a process that is about to be ended as it does not end itself.
    patience: seconds that what follows a run may take, such as closing its loggers.

    The processes of one host agree through a few bytes in the file `notice`, without a collective.
    A process that finds a signal after step n writes n + 1, the step to stop after, before it
    begins that step. No peer can finish n + 1 without its gradients, so all peers read the notice
    in time. Without `notice` there is one process, or there are several hosts; those agree at log
    points and at the end of evaluations. So do processes with a GPU each: they queue steps, and one
    may have queued some that another has not begun.
    """

    def __init__(
        self,
        notice: Path | None = None,
        alone: bool = True,
        tell: Callable[[Failure], None] = lambda failure: None,
        patience: float = math.inf,
    ) -> None:
        self.signal = 0
        self.tell, self.patience = tell, patience
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
    def listening(
        self, seconds: float, stopped: Callable[[int], Failure], inline: bool = False
    ) -> Iterator[None]:
        """Record signals while the block runs. The process ends `seconds` after the first one.

        stopped: gives the failure to end with then. A thread reads the signals from the
        interpreter's wakeup descriptor, because the main thread may be waiting in a collective for
        a process that is gone, and would never get to run a handler. Inline there is no launcher
        to do it: a second Ctrl-C interrupts at once.
        """
        reader, writer = socket.socketpair()
        writer.setblocking(False)
        known = active_handlers()
        interrupts = 0

        def interrupt(number: int, first: bool) -> None:
            nonlocal interrupts
            interrupts += number == signal.SIGINT
            if inline and interrupts > 1:
                raise KeyboardInterrupt(number)

        def listen() -> None:
            while numbers := reader.recv(16):
                for number in numbers:
                    if number in known and not self.signal:
                        self.signal = number
                        if not inline:
                            self.end_after(seconds, lambda: stopped(self.signal))

        fd = signal.set_wakeup_fd(writer.fileno(), warn_on_full_buffer=False)
        thread = threading.Thread(target=listen, daemon=True)
        thread.start()
        try:
            with handled(interrupt):
                # The forkserver blocks signals, so that none is lost before this moment.
                signal.pthread_sigmask(signal.SIG_UNBLOCK, SIGNALS)
                yield
        finally:
            signal.set_wakeup_fd(fd)
            writer.shutdown(socket.SHUT_RDWR)  # a forked process may have it open as well
            writer.close()
            thread.join()
            reader.close()

    def end_after(self, seconds: float, failure: Callable[[], Failure]) -> threading.Timer:
        """End this process with `failure` in so many seconds, unless the timer is cancelled."""

        def end() -> None:
            ended = failure()
            self.tell(ended)
            os._exit(ended.code)

        return later(seconds, end)
