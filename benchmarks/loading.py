"""Memory of batches that are read ahead; time that the objective adds to network and loss."""

from __future__ import annotations

import gc
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from benchmarks.apart import apart
from benchmarks.measure import OURS, Array, Bench, Figures, Row, Turns, at_most, ratio
from benchmarks.step import mlp
from ninefold.dataset import Rows
from ninefold.dataset.loader import gathered, slots
from ninefold.engine.task import Objective
from ninefold.task.classification import Classification
from ninefold.train.kernels import keep_freed

ROWS, SIDE = 32, 256
BATCH = ROWS * SIDE * SIDE * (3 + 1)  # bytes: images and their masks
THREADS = 2, 4
CALLS = 2000
STEP = 0.05  # seconds of a training step, in which all that may be are read ahead


class Decoded:
    """Rows of bytes that are made when they are read, as images in files are."""

    def __init__(self, *shape: int) -> None:
        self.shape = (100_000, *shape)

    def __len__(self) -> int:
        return self.shape[0]

    def __getitem__(self, rows: Rows | slice) -> Any:
        assert not isinstance(rows, slice)
        return np.ones((len(rows), *self.shape[1:]), np.uint8)


def pss() -> int:
    """Bytes: the proportional set size of this process, without files.

    Its share of torch's libraries grows whenever another process that has mapped them ends.
    """
    lines = Path("/proc/self/smaps_rollup").read_text().splitlines()
    kinds = ("Pss_Anon:", "Pss_Shmem:")
    return sum(1024 * int(line.split()[1]) for line in lines if line.startswith(kinds))


@contextmanager
def reading(workers: int, kept: int) -> Iterator[Callable[[], float]]:
    """A contestant for `apart`: growth of the PSS over 20 batches, of which `kept` are kept."""
    keep_freed()
    arrays = [Decoded(3, SIDE, SIDE), Decoded(SIDE, SIDE)]

    def turn() -> float:
        gc.collect()
        before, most, more = pss(), 0, []
        with closing(gathered(arrays, [np.arange(ROWS)] * 20, workers)) as source:
            while batch := next(source, None):
                time.sleep(STEP)
                most = max(most, pss() - before)
                more += [batch] * (len(more) < kept)
                del batch
        return float(most)

    yield turn


def in_a_new_process(workers: int, kept: int) -> float:
    with apart(reading, workers, kept) as turn:
        return turn()


@contextmanager
def memory(handicap: bool) -> Iterator[Turns]:
    kept = 2 if handicap else 0
    few, many = THREADS
    yield {
        OURS: lambda: in_a_new_process(few, kept),
        "many": lambda: in_a_new_process(many, kept),
        "announced": lambda: float(slots(few) * BATCH),
        "announced for many": lambda: float(slots(many) * BATCH),
    }


@contextmanager
def objective(handicap: bool) -> Iterator[Turns]:
    """Seconds for a forward pass and the loss of the tiny MLP."""
    torch.set_num_threads(1)
    network, task = mlp(), Classification(10)
    ours = Objective(network, task)
    inputs, targets = torch.randn(64, 1, 8, 8), torch.randint(0, 10, (64,))

    def plain(inputs: Tensor, targets: Tensor) -> Tensor:
        return F.cross_entropy(network(inputs), targets)

    def slowed(inputs: Tensor, targets: Tensor) -> Tensor:
        until = time.perf_counter() + 20e-6
        while time.perf_counter() < until:
            pass
        loss: Tensor = ours(inputs, targets)
        return loss

    def seconds(call: Callable[[Tensor, Tensor], Tensor]) -> float:
        began = time.perf_counter()
        for _ in range(CALLS):
            call(inputs, targets)
        return (time.perf_counter() - began) / CALLS

    yield {
        OURS: lambda: seconds(slowed if handicap else ours),
        "plain": lambda: seconds(plain),
    }


def added(figures: Figures) -> Array:
    return (figures[OURS] - figures["plain"]) * 1e6


BENCHES = [
    Bench(
        "loader-memory",
        f"A turn is a new process whose loader threads ({THREADS[0]}, {THREADS[1]}) read 20 "
        f"batches of {BATCH / 1e6:.1f} MB, bytes of images and masks, {STEP * 1000:g} ms apart. "
        "Its figure is the growth of its memory without files; announced is what the run prints. "
        "The handicap: two batches are kept.",
        memory,
        [
            Row(
                f"memory of batches in flight, {THREADS[0]} threads",
                "announced",
                ratio(OURS, "announced"),
                at_most(1.1),
            ),
            Row(
                f"memory of batches in flight, {THREADS[1]} threads",
                "announced",
                ratio("many", "announced for many"),
                at_most(1.1),
            ),
        ],
        pairs=5,
    ),
    Bench(
        "objective",
        f"A turn is {CALLS} forward passes with their loss of an MLP (64-64-10), batch 64, one "
        "thread, in training mode. The handicap: 20 µs more for each.",
        objective,
        [Row("the objective, tiny MLP", "network and loss", added, at_most(2), "µs")],
    ),
]
