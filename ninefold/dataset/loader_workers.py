"""Worker processes that read examples: forked once, asked over pipes, answers in shared memory.

They are what a class that is written for torch's DataLoader expects: each has generators of its own
and a copy of the class as it was built, before anything was read, which need not be picklable.
"""

from __future__ import annotations

import faulthandler
import fcntl
import gc
import math
import mmap
import multiprocessing
import os
import queue
import re
import select
import signal
import stat
import struct
import sys
import traceback
import warnings
import weakref
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from multiprocessing import util
from typing import Any

import numpy as np
import numpy.typing as npt

from ninefold import signals
from ninefold.errors import (
    DataError,
    Failure,
    ResourceError,
    Unended,
    is_users,
    memory_failure,
)
from ninefold.process import until

Arrays = list[npt.NDArray[Any]]

AHEAD = 2  # questions that a worker has at a time: while it answers one, another waits
LOOK = 1.0  # seconds between looks whether a worker is alive
ALIGNED = 64  # bytes
NOTE = struct.Struct("=q")
NO_ITEM = -1
TELL_WHERE = signal.SIGUSR2  # to a worker that hangs
# A line of a traceback that faulthandler writes.
FRAME = re.compile(r'File "(.+)", line (\d+) in (.+)')
BEFORE_EXIT = 100  # priority among what multiprocessing calls before it waits for its processes


class Slot:
    """Memory that a worker shares with the process that asks it, for one answer at a time.

    It is that of a file without a name, which grows with the answers, ends with its last holder,
    also after SIGKILL, and is not bound by the size of /dev/shm.
    """

    def __init__(self) -> None:
        self._file = os.memfd_create("ninefold-loader")
        self._closed = weakref.finalize(self, os.close, self._file)
        self._memory: mmap.mmap | None = None
        self._made: list[tuple[int, str, tuple[int, ...]]] = []
        self.note(NO_ITEM)

    def empty(self, shape: tuple[int, ...], dtype: npt.DTypeLike) -> npt.NDArray[Any]:
        """The next array of the answer, to be filled."""
        begin, named, before = self._made[-1] if self._made else (0, "u1", (NOTE.size,))
        end = begin + math.prod(before) * np.dtype(named).itemsize
        place = (-(-end // ALIGNED) * ALIGNED, np.dtype(dtype).str, tuple(shape))
        self._made.append(place)
        return self.at(*place)

    def answer(self) -> list[tuple[int, str, tuple[int, ...]]]:
        """Where the arrays are that were made since the last call, for `at`."""
        made, self._made = self._made, []
        return made

    def at(self, begin: int, dtype: str, shape: tuple[int, ...]) -> npt.NDArray[Any]:
        """The array at a place in the memory, which other answers will overwrite."""
        end = begin + math.prod(shape) * np.dtype(dtype).itemsize
        return np.ndarray(shape, dtype, self._mapped(end), begin)

    def note(self, number: int) -> None:
        """Note the item that is being read, for the process that asked."""
        NOTE.pack_into(self._mapped(NOTE.size), 0, number)

    def noted(self) -> int:
        return int(NOTE.unpack_from(self._mapped(NOTE.size))[0])

    def close(self) -> None:
        self._memory = None
        self._closed()

    def _mapped(self, size: int) -> mmap.mmap:
        if self._memory is None or len(self._memory) < size:
            if os.fstat(self._file).st_size < size:
                os.ftruncate(self._file, size)
            self._memory = mmap.mmap(self._file, 0)
        return self._memory


@dataclass
class Seat:
    """A place for one question to a worker process: it answers one while others wait.

    ours, theirs: the ends of its pipe. traced: a file for the traceback of the process.
    others: all seats of the process. hung: what is said of it once it has been given up.
    """

    slot: Slot
    ours: Any
    theirs: Any
    traced: int = -1
    process: Any = None
    others: list[Seat] = field(default_factory=list)
    hung: str = ""  # no exception, whose traceback would hold all of this

    def __post_init__(self) -> None:
        self.poll = select.poll()
        self.poll.register(self.ours.fileno(), select.POLLIN)


Answer = Callable[[Any, Slot], None]


class InWorker(Exception):
    """The traceback of an error in a worker process, as text, for the log."""

    def __str__(self) -> str:
        return f"in a worker process\n\n{self.args[0]}"


class LoaderWorkers:
    """Worker processes that answer questions about examples with arrays.

    They ignore signals, which concern the process that asks, and end with it, however it ends.
    """

    def __init__(self, count: int, answer: Answer, patience: float) -> None:
        """Fork `count` processes, each with seats for AHEAD questions, which it answers in turn.

        Called by the main thread, as the kernel ends the processes with the thread that forked
        them, and before threads are started that may hold a lock while they are forked.

        answer: called in a worker with a question and a slot, makes the arrays of the answer in it.
        patience: seconds that an answer may take. Raises ResourceError.
        """
        self._count, self._patience = count, patience
        self._seats: list[Seat] = []
        self._free: queue.SimpleQueue[Seat] = queue.SimpleQueue()
        close = util.Finalize(self, _close, args=(self._seats,), exitpriority=BEFORE_EXIT)
        try:
            with signals.held_back():
                for _ in range(count):
                    self._seats.extend(_forked(answer))
        except OSError as error:
            close()
            raise ResourceError(
                "loader.workers",
                count,
                f"no worker process can be started ({error}); each takes some memory and open "
                "files; lower loader.workers; 0 starts none",
            ) from error
        for turn in range(AHEAD):
            for seat in self._seats[turn::AHEAD]:
                self._free.put(seat)

    def ask(self, question: Any) -> Arrays:
        """The answer of a worker that is free, copied; any number of threads may ask.

        Raises what answering raises, ResourceError, DataError if the worker has ended, and Unended
        if it takes longer than it may.
        """
        seat = self._free.get()
        try:
            said = self._said(seat, question)
            if isinstance(said, list):
                return [seat.slot.at(*place).copy() for place in said]
        finally:
            self._free.put(seat)
        failure, text = said
        raise failure from InWorker(text)

    def _said(self, seat: Seat, question: Any) -> Any:
        """What `_answered` returned in the worker. Raises Failure if it has ended, or hangs."""
        with suppress(OSError, EOFError):  # it has ended
            seat.ours.send(question)
            # By looks and not by the clock: this process and the worker may be stopped meanwhile.
            for _ in range(math.ceil(self._patience / LOOK)):
                if seat.poll.poll(1000 * LOOK):
                    return seat.ours.recv()
                if seat.process.exitcode is not None:
                    break
            else:
                raise self._hung(seat)
        raise self._ended(seat)

    def _hung(self, seat: Seat) -> Failure:
        """Give a worker up: have it write where it is, and kill it. Returns what to raise."""
        with suppress(ProcessLookupError):
            os.kill(seat.process.pid, TELL_WHERE)
        seat.process.join(LOOK)  # until it has written where it is
        said = (
            f"a worker process has not answered for {self._patience:g} s{_item(seat)}; "
            f"{_line(seat) or f'its process id was {seat.process.pid}'}; see what it waits for; "
            "launch.timeout is the limit"
        )
        for each in seat.others:  # what waits behind that question must not wait as long again
            each.hung = each.hung or said
        seat.process.kill()
        return Unended("loader.workers", self._count, said)

    def _ended(self, seat: Seat) -> Failure:
        """What to raise for a worker that has ended."""
        if seat.hung:
            return Unended("loader.workers", self._count, seat.hung)
        # Its end of the pipe is closed a moment before it ends, and another thread that asks for
        # its exit code at the same time may be told first.
        until(lambda: seat.process.exitcode is not None, LOOK, look=0.01)
        code = seat.process.exitcode
        if code == -signal.SIGKILL:
            return ResourceError(
                "loader.workers",
                self._count,
                f"a worker process was killed (SIGKILL){_item(seat)}; most often the kernel was "
                "short of memory; lower loader.workers or batch_size, see dmesg",
            )
        ended = f"left with exit code {code}"
        if code is None or code < 0:
            ended = f"died of {signal.Signals(-code).name}" if code else "closed its pipe"
        return DataError(
            "loader.workers",
            self._count,
            f"a worker process {ended}{_item(seat)}; {_line(seat) or 'it left no traceback'}; "
            "correct that: code of a dataset may raise, not exit or crash",
        )


def _item(seat: Seat) -> str:
    """Words that name the item which the worker was reading; "": it was reading none."""
    numbers = [number for each in seat.others if (number := each.slot.noted()) != NO_ITEM]
    return f" as it read item {numbers[0]}" if numbers else ""


def _line(seat: Seat) -> str:
    """The line of the user's code that a worker has written it was at; "": it has not."""
    text = os.pread(seat.traced, 2**16, 0).decode(errors="replace")
    for file, line, name in FRAME.findall(text):
        if is_users(file):
            return f"it was at {file}:{line} in {name}"
    return ""


def _forked(answer: Answer) -> Sequence[Seat]:
    """The seats of a new worker process."""
    context = multiprocessing.get_context("fork")
    seats = [Seat(Slot(), *context.Pipe()) for _ in range(AHEAD)]
    traced = os.memfd_create("ninefold-traceback")
    arguments = (seats, answer, traced, os.getpid())
    process = context.Process(target=_serve, args=arguments, name="loader worker")
    with warnings.catch_warnings():
        # Python 3.12 warns of other threads: of those that there are so early none holds a lock.
        warnings.simplefilter("ignore", DeprecationWarning)
        process.start()
    for seat in seats:
        seat.theirs.close()
        seat.process, seat.traced, seat.others = process, traced, seats
    return seats


def _close(seats: list[Seat]) -> None:
    """Kill the workers and wait for their end."""
    processes = {seat.process.pid: seat.process for seat in seats}
    for process in processes.values():
        if process.exitcode is None:
            process.kill()
    for process in processes.values():
        process.join()
    for number, seat in enumerate(seats):
        seat.ours.close()
        seat.slot.close()
        seat.others = []
        if number % AHEAD == 0:
            os.close(seat.traced)
    seats.clear()


# In a worker process


def _serve(seats: Sequence[Seat], answer: Answer, traced: int, parent: int) -> None:
    """Answer what comes over the pipes of these seats, until the process that asks is gone."""
    signals.follow_parent(parent)
    # A handler, and not SIG_IGN, which programs that the class starts would inherit.
    signal.set_wakeup_fd(-1)
    signals.handle(lambda number, first: None)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, signals.SIGNALS)
    faulthandler.enable(traced, all_threads=False)
    faulthandler.register(TELL_WHERE, traced, all_threads=False)
    gc.freeze()  # memory pages that are not looked at stay shared
    if torch := sys.modules.get("torch"):
        torch.set_num_threads(1)  # OpenMP would wait for the threads of its parent
    _reopen()
    whose, poll = {seat.theirs.fileno(): seat for seat in seats}, select.poll()
    for descriptor in whose:
        poll.register(descriptor, select.POLLIN)
    with suppress(OSError, EOFError):  # the other end is closed
        while True:
            for descriptor, _ in poll.poll():
                seat = whose[descriptor]
                question = seat.theirs.recv()
                seat.theirs.send(_answered(answer, question, seat.slot))


def _answered(answer: Answer, question: Any, slot: Slot) -> Any:
    """A list of where the arrays of the answer are; or a failure, and its traceback as text."""
    slot.answer()  # forget the arrays of a question that failed
    try:
        answer(question, slot)
        return slot.answer()
    except BaseException as error:
        failure: Exception | None = error if isinstance(error, Failure) else None
        failure = failure or memory_failure(error, "examples were being read")
        said = f"{type(error).__name__}: {error}".rstrip(": ")
        return failure or RuntimeError(said), traceback.format_exc()
    finally:
        slot.note(NO_ITEM)
        with suppress(OSError, ValueError, AttributeError):  # what the class has printed
            sys.stdout.flush()


def _reopen() -> None:
    """Give this process a position of its own in each file that is open for reading.

    A class may have opened one when it was built. The position of a descriptor is shared by all
    processes that were forked with it: they would read what another one has moved to.
    """
    for name in os.listdir("/proc/self/fd"):
        with suppress(OSError):  # it may not be opened any more, or was that of the folder
            descriptor, flags = int(name), fcntl.fcntl(int(name), fcntl.F_GETFL)
            if flags & os.O_ACCMODE or not stat.S_ISREG(os.fstat(descriptor).st_mode):
                continue
            again = os.open(f"/proc/self/fd/{name}", flags)
            os.lseek(again, os.lseek(descriptor, 0, os.SEEK_CUR), os.SEEK_SET)
            os.dup2(again, descriptor, inheritable=os.get_inheritable(descriptor))
            os.close(again)
