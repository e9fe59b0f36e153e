"""Worker processes that read items ahead: torch's DataLoader, whose index is a whole batch.

They are what a class that is written for DataLoader expects: each has generators of its own and a
copy of the class as it was built, before anything was read, which need not be picklable.
"""

from __future__ import annotations

import faulthandler
import logging
import math
import multiprocessing
import os
import shutil
import signal
import threading
import traceback
import warnings
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from logging import FileHandler
from multiprocessing import connection, util
from multiprocessing.process import BaseProcess
from typing import Any, cast

import torch
from torch.utils.data import DataLoader, Dataset
from torch.utils.data._utils import signal_handling

from ninefold import signals
from ninefold.dataset.arrays import Reading, Rows, Split
from ninefold.dataset.items import Items, raised
from ninefold.dataset.loader import AHEAD
from ninefold.errors import (
    DataError,
    Failure,
    ProcessNotEnded,
    ResourceError,
    chain,
    text_of,
)
from ninefold.streams import flush_stdout
from ninefold.tree import each

Index = tuple[Split, Rows, int, int]  # the items of a batch, as an epoch of a seed draws them

LOOK = 1.0  # seconds between looks whether all workers are alive
# What is missing, most often, where a worker ended so.
SHORT = {-signal.SIGKILL: "memory", -signal.SIGBUS: "room in /dev/shm (docker --shm-size)"}


class InWorker(Exception):
    """The traceback of an error in a worker process, as text, for the log."""

    def __str__(self) -> str:
        return f"in a worker process\n\n{self.args[0]}"


class ItemBatches(Dataset[Any]):
    """What DataLoader's workers have: batches of items, indexed by `Index`."""

    def __init__(self, items: Callable[[Split], Items]) -> None:
        """items: the items of a split."""
        self._items = items
        self._parent = os.getpid()

    def begin(self, worker: int) -> None:
        """Called once in each worker, before it reads."""
        signals.follow_parent(self._parent)
        # Signals concern the process that reads the batches. A handler, and not SIG_IGN, which
        # programs that the class starts would inherit.
        signal.set_wakeup_fd(-1)
        signals.handle(lambda number, first: None)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, signals.SIGNALS)
        logs = [each.stream for each in logging.root.handlers if isinstance(each, FileHandler)]
        log: Any = logs[0] if logs else 2
        faulthandler.disable()  # DataLoader's handlers, which print a line
        faulthandler.enable(log, all_threads=False)

    def __getitem__(self, asked: tuple[int, Index] | None) -> tuple[int, Any]:
        """The reading, and inputs and targets; or instead a failure, and its traceback as text."""
        if asked is None:
            return 0, None
        reading, index = asked
        return reading, self._read(*index)

    def _read(self, split: Split, rows: Rows, seed: int, epoch: int) -> Any:
        try:
            read = self._items(split).read(rows, seed, epoch)
            return each(lambda tensor: tensor.share_memory_(), read)
        except BaseException as error:  # also KeyboardInterrupt, which no signal raises here
            failure = full(error) or raised(f"dataset.{split}", "items", "reading them", error)
            return failure, traceback.format_exc()
        finally:
            flush_stdout()  # what the class has printed


class ItemLoader:
    """Batches of items that worker processes read ahead, in the order that is asked for.

    The workers ignore signals, which concern the process that asks, and end with it, however it
    ends.
    """

    def __init__(self, items: Callable[[Split], Items], workers: int, patience: float) -> None:
        """Fork the workers. Called by the main thread, as the kernel ends them with the thread that
        forked them, and before threads are started that may hold a lock while they are forked.

        items: the items of a split, in a worker. patience: seconds that a batch may take.
        Raises OSError.
        """
        self._workers, self._patience = workers, patience
        self._batches = ItemBatches(items)
        # What is to be read next. DataLoader's sampler empties it, AHEAD batches for each worker
        # before they are asked for: the answers to what a call of `read` has left come to the next
        # one, which knows them by the number of the call.
        self._order: deque[tuple[int, Index]] = deque()
        self._reading, self._lock = 0, threading.Lock()
        util.get_temp_dir()  # which each worker would else make, and leave
        before, handler = set(multiprocessing.active_children()), signal.getsignal(signal.SIGCHLD)
        try:
            with signals.held_back(), warnings.catch_warnings():
                # Of more workers than cores, and Python 3.12 of other threads: so early none of
                # them holds a lock.
                warnings.simplefilter("ignore")
                loader: DataLoader[Any] = DataLoader(
                    self._batches,
                    batch_size=None,
                    sampler=endless(self._order),
                    num_workers=workers,
                    prefetch_factor=AHEAD,
                    collate_fn=lambda batch: batch,
                    worker_init_fn=self._batches.begin,
                    multiprocessing_context="fork",
                    timeout=LOOK,
                    generator=torch.Generator(),  # it would draw from torch's own
                )
                self._answers = iter(loader)
        except OSError:
            _close([*set(multiprocessing.active_children()) - before])
            raise
        # DataLoader's would raise an error anywhere, where `_next` looks for workers that ended: it
        # may be there already, for another DataLoader of this process.
        signal.signal(signal.SIGCHLD, handler)
        signal_handling._remove_worker_pids(id(self._answers))
        # Its own way of ending workers waits for ever for a lock that a killed one has held.
        self._answers._shutdown_workers = lambda: None  # type: ignore[attr-defined]
        self._processes = [*set(multiprocessing.active_children()) - before]
        # With any priority it is called before multiprocessing waits for its processes.
        util.Finalize(self, _close, args=(self._processes,), exitpriority=100)

    def read(self, split: Split, batches: Sequence[Rows], seed: int = 0, epoch: int = 0) -> Reading:
        """For each of `batches` inputs and targets of its items, read ahead.

        Another call may begin before this one has ended, which then reads ahead again.
        Raises what reading raises, ResourceError, DataError if a worker has ended, and
        ProcessNotEnded if a batch takes longer than it may.
        """
        done = reading = 0
        while done < len(batches):
            with self._lock:  # a thread that reads ahead may be in another call
                if self._reading != reading or not reading:
                    reading = self._reading = self._reading + 1
                    self._order.clear()
                    self._order.extend((reading, (split, b, seed, epoch)) for b in batches[done:])
                of, found = self._next()
            if of != reading:  # read ahead for nobody
                continue
            done += 1
            if isinstance(found[0], Failure):
                failure, text = found
                raise failure from InWorker(text)
            yield found
            del found

    def close(self) -> None:
        """End the workers; nothing is read any more."""
        _close(self._processes)

    def _next(self) -> Any:
        """What `ItemBatches` has returned in a worker for the next index."""
        for _ in range(math.ceil(self._patience / LOOK)):
            try:
                return next(self._answers)
            except Exception as error:
                late = "timed out" in str(error)
                # The others tell of one that is just ending, with what it has read.
                ends = {process.sentinel: process for process in self._processes}
                for sentinel in connection.wait([*ends], 0 if late else LOOK):
                    raise self._ended(ends[cast(int, sentinel)]) from error
                if not late:  # it can be what the class has written there
                    what = "reading what a worker process has sent"
                    raise raised("loader.workers", str(self._workers), what, error) from error
        self.close()
        wrong = f"no batch has come for {self._patience:g} s"
        allowed = "the dataset's class waits for something, or is slow"
        do = "see py-spy dump, or raise launch.timeout, the limit"
        raise ProcessNotEnded("loader.workers", self._workers, wrong, allowed, do)

    def _ended(self, process: BaseProcess) -> Failure:
        """What to raise for a worker that has ended."""
        process.join()  # its end is seen a moment before its exit code
        code = process.exitcode or 0
        if code in SHORT:
            wrong = f"a worker process was killed ({signal.Signals(-code).name})"
            allowed = f"most often there is too little {SHORT[code]}"
            do = "lower loader.workers or batch_size, see dmesg"
            return ResourceError("loader.workers", self._workers, wrong, allowed, do)
        died = f"died of {signals.name_of(-code)}" if code < 0 else f"left with exit code {code}"
        allowed = "the log has its traceback if it left one"
        do = "correct that: code of a dataset may raise, not exit or crash"
        return DataError("loader.workers", self._workers, f"a worker process {died}", allowed, do)


def full(error: BaseException) -> ResourceError | None:
    """The failure of shared memory that does not take a batch; None: `error` is another one.

    DataLoader would move a batch there in a thread that prints its error and sends nothing.
    """
    for cause in chain(error):
        if not isinstance(cause, Failure) and "</torch_" in (text := text_of(cause)):
            with suppress(OSError):  # torch leaves the file, `... for file </NAME>: ...`
                os.unlink("/dev/shm" + text.partition("<")[2].partition(">")[0])
            said, free = text.rpartition(": ")[2], shutil.disk_usage("/dev/shm").free
            found = f"batches are handed over there, {free:,} bytes are free"
            do = "give it more (docker run --shm-size=1g), or lower batch_size or loader.workers"
            return ResourceError("file", "/dev/shm", said, found, do)
    return None


def endless(order: deque[tuple[int, Index]]) -> Iterator[tuple[int, Index] | None]:
    """What is in `order`, and None where nothing is: so that the workers serve for ever."""
    while True:
        yield order.popleft() if order else None


def _close(processes: Sequence[BaseProcess]) -> None:
    """Kill the workers and wait for their end."""
    for process in processes:
        process.kill()
    for process in processes:
        process.join()
