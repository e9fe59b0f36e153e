"""Loader threads change when examples are read, and nothing else; how many, and their memory."""

import itertools
import os
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import closing
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import torch

from ninefold.dataset import Examples, Rows
from ninefold.dataset.loader import HostSource, gathered
from ninefold.dataset.plan import LoaderPlan, on_host
from ninefold.dataset.preparation import ImagePreparation
from ninefold.engine.batches import Batches, shard
from ninefold.engine.parallel import RankContext
from ninefold.errors import ConfigError, DataError
from tests.dataset.kit import ALONE, CPU, epoch, labeled, nothing
from tests.kit import same

GPU = torch.device("cuda", 0)
EXAMPLES = labeled(103, 3, 6, 6, classes=None)
INPUTS: Any = EXAMPLES.inputs
BATCHES = [np.arange(103)[first : first + 4] for first in range(0, 103, 4)]


class Made:
    """Rows of bytes that are made when they are read, after so many seconds."""

    def __init__(self, *shape: int, seconds: float = 0) -> None:
        self.shape, self.seconds = (100_000, *shape), seconds

    def __len__(self) -> int:
        return len(range(self.shape[0]))

    def __getitem__(self, rows: Rows) -> npt.NDArray[np.uint8]:
        time.sleep(self.seconds)
        return np.ones((len(rows), *self.shape[1:]), np.uint8)


def of(workers: int, start: int = 0, context: RankContext = ALONE) -> list[Any]:
    prepare = ImagePreparation(3, flip=True, crop=2)
    return epoch(HostSource(EXAMPLES, workers), prepare, context, 3, start)


def loader_threads() -> list[str]:
    return [thread.name for thread in threading.enumerate() if thread.name.startswith("loader")]


@pytest.fixture(autouse=True)
def none_left() -> Iterator[None]:
    """Whatever a test does, no loader thread outlives it."""
    yield
    assert loader_threads() == []


@pytest.mark.parametrize("workers", [1, 2, 3, 40])
def test_the_same_batches_follow_from_any_position_with_any_number_of_loader_threads(workers):
    whole = of(0)
    for start in range(0, len(whole) + 1, 1 if workers == 2 else 5):
        assert same(of(workers, start), whole[start:])


def test_the_same_examples_are_evaluated_with_loader_threads():
    alone, threads = (
        [*shard(HostSource(EXAMPLES, n), 10, ImagePreparation(3), ALONE)] for n in (0, 2)
    )
    assert same(alone, threads)


def test_a_batch_is_not_overwritten_while_it_is_in_use():
    with closing(gathered([INPUTS], BATCHES, 2)) as source:
        for rows, (images,) in zip(BATCHES, source, strict=True):
            time.sleep(0.01)  # as many batches as may be are read meanwhile
            assert np.array_equal(images.numpy(), INPUTS[rows])


@pytest.mark.parametrize("workers", [0, 2])
def test_a_data_error_arrives_as_it_was_raised(workers):
    failure = DataError("dataset.root", "x", "image 40 is broken", "found", "mend it")

    class Broken(Made):
        def __getitem__(self, rows: Rows) -> Any:
            if 40 in rows:
                raise failure
            return super().__getitem__(rows)

    source = gathered([Broken(1, 1, 1)], BATCHES, workers)
    assert len(list(itertools.islice(source, 10))) == 10
    with pytest.raises(DataError) as caught:
        next(source)
    assert caught.value is failure


def batches() -> Iterator[Any]:
    prepare = ImagePreparation(3)
    return Batches(HostSource(EXAMPLES, 2), 8, 0, prepare, ALONE).epoch(0, 0, nothing, nothing)


def leave_by_exception() -> None:
    def train() -> None:
        for _ in batches():
            raise KeyError

    with pytest.raises(KeyError):
        train()


def leave_by_forgetting() -> None:
    source = batches()
    next(source)
    del source


@pytest.mark.parametrize("leave", [leave_by_exception, leave_by_forgetting])
def test_leaving_an_epoch_ends_its_loader_threads(leave):
    began = time.monotonic()
    leave()
    assert loader_threads() == []
    assert time.monotonic() - began < 4


def test_a_signal_is_handled_while_a_batch_is_waited_for():
    called: list[float] = []
    before = signal.signal(signal.SIGUSR1, lambda number, frame: called.append(time.monotonic()))
    try:
        timer = threading.Timer(0.2, os.kill, (os.getpid(), signal.SIGUSR1))
        timer.start()
        began = time.monotonic()
        with closing(gathered([Made(1, seconds=1.0)], BATCHES[:1], 1)) as source:
            next(source)
        timer.join()
    finally:
        signal.signal(signal.SIGUSR1, before)
    assert [when for when in called if when - began < 0.9]


# How many threads, and the memory of their batches

MASKED = 32 * 512 * 512 * (3 + 1)  # bytes of 32 images of 512x512x3 and their masks
IMAGES = Examples(Made(3, 512, 512), Made(512, 512))


def plan(context: RankContext, examples: Examples = IMAGES, **settings: Any) -> LoaderPlan:
    given: dict[str, Any] = {
        "workers": "auto", "pinned": "auto", "free": 64 * 10**9, "cores": 64,
    }  # fmt: skip
    return on_host(examples, 32, context, **{**given, **settings})


def on(device: torch.device, processes: int = 1) -> RankContext:
    return RankContext(0, processes, device, local_size=processes)


def test_a_batch_of_bytes_is_read_ahead_as_bytes():
    found = plan(on(GPU))
    assert found.batch == MASKED
    assert str(found) == (
        "loader: 8 threads, 17 slots of 33.6 MB (uint8 inputs, uint8 targets, page-locked) = 570 MB"
    )


@pytest.mark.parametrize(
    ("context", "settings", "workers"),
    [
        (on(GPU), {}, 8),
        (on(GPU), {"cores": 4}, 3),
        (on(GPU, 2), {"cores": 8}, 3),
        (on(GPU), {"cores": None}, 0),
        (on(GPU), {"free": 4 * 7 * MASKED}, 3),
        (on(GPU), {"free": 4 * 7 * MASKED - 4}, 2),
        (on(CPU), {"cores": 1}, 1),
        (on(CPU, 2), {"free": MASKED}, 0),
        (on(CPU), {"workers": 0, "free": 1}, 0),
        (on(CPU), {"workers": 40}, 40),
    ],
)
def test_auto_is_what_memory_and_cores_allow_up_to_eight_threads(context, settings, workers):
    assert plan(context, **settings).workers == workers


def test_data_in_memory_needs_no_thread():
    for examples in (EXAMPLES, EXAMPLES.select(np.arange(20)), EXAMPLES.first(9)):
        found = plan(on(GPU), examples)
        assert (found.workers, found.batch) == (0, 32 * (3 * 6 * 6 + 8))


def test_batches_are_page_locked_on_cuda_alone():
    pinned = {asked: plan(on(GPU), pinned=asked).pinned for asked in ("auto", True, False)}
    assert pinned == {"auto": True, True: True, False: False}
    assert not any(plan(on(CPU), pinned=asked).pinned for asked in ("auto", False))
    with pytest.raises(ConfigError, match=r"^error: loader.pinned=true: batches stay in main"):
        plan(on(CPU), pinned=True)
