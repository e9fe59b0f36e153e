"""Batches of bytes, gathered as they are asked for or ahead of it by processes of their own."""

from __future__ import annotations

import math
import mmap
import multiprocessing
import signal
import warnings
from collections.abc import Generator, Iterator, Sequence
from multiprocessing.context import ForkContext, ForkProcess
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset
from torch.utils.data._utils import signal_handling
from torch.utils.data.dataloader import _MultiProcessingDataLoaderIter

from ninefold.dataset import Images, Rows
from ninefold.errors import Failure, ResourceError, relay
from ninefold.signals import SIGNALS, follow_parent

AHEAD = 2  # batches asked of each loader process before the first is wanted
LOOK = 0.5  # seconds that a batch is waited for between looks at the processes
Report = Sequence[str]  # a failure's class name and parts


def gathered(
    images: Images, batches: Sequence[Rows], workers: int
) -> Generator[Tensor, None, None]:
    """uint8 [n, channels, height, width] for the rows of each of `batches`, in order.

    With `workers` processes a tensor's bytes hold until the next one is asked for, and closing
    the generator ends the processes. Raises the Failure that reading an image raises,
    ResourceError if a process cannot start or is killed.
    """
    if workers and batches:
        yield from _ahead(images, batches, workers)
    else:
        for rows in batches:
            yield torch.from_numpy(images[rows])


def _ahead(images: Images, batches: Sequence[Rows], workers: int) -> Generator[Tensor, None, None]:
    ahead = AHEAD * min(workers, len(batches))  # batches asked for beyond the one in use
    shape = (ahead + 1, max(map(len, batches)), *images.shape[1:])
    context = _Fork()
    processes = context.made
    iterator: _Reports | None = None
    try:
        try:
            # Memory that parent and children share needs no /dev/shm, which containers keep small.
            slots = np.frombuffer(mmap.mmap(-1, math.prod(shape)), np.uint8).reshape(shape)
            # Where a pipe and semaphores cannot be had, DataLoader would fail with noise on stderr.
            multiprocessing.get_context("fork").SimpleQueue().close()
            iterator = _start(_Slots(images, batches, slots), ahead // AHEAD, context)
        except OSError as error:
            raise ResourceError(
                "loader.workers", workers, f"no loader process can be started ({error.strerror})",
                "they take memory, process ids and semaphores in /dev/shm",
                "lower loader.workers; 0 takes none of it",
            ) from error  # fmt: skip
        tensors = torch.from_numpy(slots)
        for number, rows in enumerate(batches):
            report = _next(iterator, processes, workers)
            if report is not None:
                raise relay(report[0], report[1:])
            yield tensors[number % len(slots), : len(rows)]
    finally:
        if iterator is not None:
            # Asked to end, at once: one killed at the wrong moment would leave a lock held.
            iterator._shutdown_workers()
        for process in processes:
            if process.is_alive():  # amid a long batch, and it ignores DataLoader's SIGTERM
                process.kill()
                process.join(5)


class _Slots(Dataset[Report | None]):
    """Puts batch after batch into shared memory: uint8 [slots, most rows, c, h, w]."""

    def __init__(
        self, images: Images, batches: Sequence[Rows], slots: npt.NDArray[np.uint8]
    ) -> None:
        self._images, self._batches, self._slots = images, batches, slots

    def __len__(self) -> int:
        return len(self._batches)

    def __getitem__(self, number: int) -> Report | None:
        """Fill the slot of batch `number`; what failed is returned, as DataLoader rewrites errors.

        The slot is free: DataLoader asks for a batch when it is asked for the one that
        is `ahead` of it, and the one before that, whose slot it was, is then done with.
        """
        rows = self._batches[number]
        try:
            self._slots[number % len(self._slots), : len(rows)] = self._images[rows]
        except Failure as failure:
            return type(failure).__name__, *failure.parts
        return None


class _Reports(_MultiProcessingDataLoaderIter):
    """DataLoader's iterator; who made it ends its processes."""

    def __del__(self) -> None:
        """Nothing: one whose second process could not be started would fail, with noise."""


class _Fork(ForkContext):
    """The context of fork. made: its processes; multiprocessing forgets one that died at once."""

    def __init__(self) -> None:
        super().__init__()
        self.made: list[ForkProcess] = []

    def Process(self, *args: Any, **kwargs: Any) -> ForkProcess:  # type: ignore[override]  # noqa: N802
        process = ForkProcess(*args, **kwargs)
        self.made.append(process)
        return process


def _start(slots: _Slots, workers: int, context: _Fork) -> _Reports:
    """The loader processes, at work. Raises OSError."""
    # DataLoader's handler of SIGCHLD raises wherever the training process happens to be, in a
    # checkpoint or in a destructor, which swallows it. Told that it is set, it sets none.
    signal_handling._SIGCHLD_handler_set = True
    # Until a child ignores the signals, they wait: it was born with its parent's handlers.
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, SIGNALS)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of more processes than cores; of threads and fork
            return _Reports(
                DataLoader(
                    slots,
                    batch_size=None,
                    num_workers=workers,
                    prefetch_factor=AHEAD,
                    worker_init_fn=_begin,
                    multiprocessing_context=context,
                    timeout=LOOK,
                    generator=torch.Generator(),  # else its seed is drawn from the run's own
                )
            )
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)


def _begin(number: int) -> None:
    """The first that a loader process does. DataLoader has given it one thread.

    What is sent to a whole group of processes is for the training process: it still wants batches
    on its way to a checkpoint.
    """
    for sent in SIGNALS:
        signal.signal(sent, signal.SIG_IGN)
    signal.set_wakeup_fd(-1)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, SIGNALS)
    follow_parent()


def _next(
    iterator: Iterator[Report | None], processes: Sequence[ForkProcess], workers: int
) -> Report | None:
    """The report on the next batch. Raises ResourceError if a loader process is dead."""
    while True:
        _require_alive(processes, workers)
        try:
            return next(iterator)
        except RuntimeError as error:  # DataLoader's words for a dead process, or a bug, too
            _require_alive(processes, workers)
            if "timed out" not in str(error):
                raise


def _require_alive(processes: Sequence[ForkProcess], workers: int) -> None:
    for process in processes:
        code = process.exitcode
        if code is None:
            continue
        how = f"was killed ({signal.Signals(-code).name})" if code < 0 else f"ended with {code}"
        raise ResourceError(
            "loader.workers", workers, f"a loader process (pid {process.pid}) {how}",
            "most often the kernel was short of memory", "lower loader.workers or batch_size",
        )  # fmt: skip
