"""Loader threads change when examples are read, and nothing else."""

from __future__ import annotations

import itertools
import os
import signal
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import closing
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest
import torch
from PIL import Image
from torch import Tensor

from ninefold.dataset import Examples, Rows
from ninefold.dataset.loader import HostSource, gathered
from ninefold.dataset.preparation import ImagePreparation
from ninefold.engine.batches import Batches, shard
from ninefold.engine.parallel import Place
from ninefold.errors import DataError, ResourceError
from ninefold.signals import SIGNALS
from tests.conftest import Shell, metrics, result

ALONE = Place(0, 1, torch.device("cpu"))
INPUTS = np.random.default_rng(0).integers(0, 256, (103, 3, 6, 6), dtype=np.uint8)
EXAMPLES = Examples(INPUTS, np.arange(103))
BATCHES = [np.arange(103)[first : first + 4] for first in range(0, 103, 4)]


class Answers:
    """Images whose one pixel is what `answer` says in the thread that reads them."""

    def __init__(self, seconds: float = 0) -> None:
        self.shape = (103, 1, 1, 1)
        self.seconds = seconds

    def __len__(self) -> int:
        return 103

    def __getitem__(self, rows: Rows) -> npt.NDArray[np.uint8]:
        time.sleep(self.seconds)
        return np.full((len(rows), 1, 1, 1), self.answer(rows), np.uint8)

    def answer(self, rows: Rows) -> int:
        return 0


def epoch(workers: int, start: int = 0, place: Place = ALONE) -> list[tuple[Tensor, Tensor]]:
    prepare = ImagePreparation(3, flip=True, crop=2)
    batches = Batches(HostSource(EXAMPLES, workers), 8, 5, prepare, place)
    return list(batches.epoch(3, start, lambda: None, lambda phase: None))


def same(left: Sequence[tuple[Tensor, ...]], right: Sequence[tuple[Tensor, ...]]) -> bool:
    pairs = zip(left, right, strict=True)
    return all(torch.equal(a, c) and torch.equal(b, d) for (a, b), (c, d) in pairs)


def loader_threads() -> list[str]:
    return [thread.name for thread in threading.enumerate() if thread.name.startswith("loader")]


@pytest.fixture(autouse=True)
def none_left() -> Iterator[None]:
    """Whatever a test does, no loader thread outlives it."""
    yield
    assert loader_threads() == []


@pytest.mark.parametrize("workers", [1, 2, 3, 40])
def test_the_same_batches_are_trained_on_with_any_number_of_loader_threads(workers: int) -> None:
    assert same(epoch(workers), epoch(0))


def test_the_same_batches_follow_from_any_position_with_loader_threads() -> None:
    whole = epoch(0)
    for start in range(len(whole) + 1):
        assert same(epoch(2, start), whole[start:])


def test_each_process_of_a_run_has_its_own_part_with_loader_threads() -> None:
    for rank in range(2):
        place = Place(rank, 2, torch.device("cpu"))
        assert same(epoch(2, place=place), epoch(0, place=place))


def test_the_same_examples_are_evaluated_with_loader_threads() -> None:
    parts = [
        list(shard(HostSource(EXAMPLES, workers), 10, ImagePreparation(3), ALONE))
        for workers in (0, 2)
    ]
    assert same(*parts)


def test_a_batch_is_not_overwritten_while_it_is_in_use() -> None:
    with closing(gathered([INPUTS], BATCHES, 2)) as source:
        for rows, (images,) in zip(BATCHES, source, strict=True):
            time.sleep(0.01)  # as many batches as may be are read meanwhile
            assert np.array_equal(images.numpy(), INPUTS[rows])


@pytest.mark.parametrize("workers", [0, 2])
def test_loading_draws_nothing_from_torchs_random_state(workers: int) -> None:
    before = torch.get_rng_state()
    epoch(workers)
    assert torch.equal(torch.get_rng_state(), before)


@pytest.mark.parametrize("workers", [0, 2])
def test_a_data_error_arrives_as_it_was_raised(workers: int) -> None:
    class Broken(Answers):
        def answer(self, rows: Rows) -> int:
            if 40 in rows:
                raise DataError("dataset.root", "x", "image 40 is broken; found; mend it")
            return 0

    source = gathered([Broken()], BATCHES, workers)
    assert len(list(itertools.islice(source, 10))) == 10
    with pytest.raises(DataError) as caught:
        next(source)
    assert str(caught.value) == "error: dataset.root=x: image 40 is broken; found; mend it"


def leave_by_break() -> None:
    for _ in gathered([Answers(0.1)], BATCHES, 2):
        break


def leave_by_exception() -> None:
    def train() -> None:
        batches = Batches(HostSource(EXAMPLES, 2), 8, 0, ImagePreparation(3), ALONE)
        for _ in batches.epoch(0, 0, lambda: None, lambda phase: None):
            raise KeyError

    with pytest.raises(KeyError):
        train()


def leave_by_forgetting() -> None:
    batches = Batches(HostSource(EXAMPLES, 2), 8, 0, ImagePreparation(3), ALONE)
    source = batches.epoch(0, 0, lambda: None, lambda phase: None)
    next(source)
    del source


@pytest.mark.parametrize("leave", [leave_by_break, leave_by_exception, leave_by_forgetting])
def test_leaving_an_epoch_ends_its_loader_threads(leave: object) -> None:
    assert callable(leave)
    began = time.monotonic()
    leave()
    assert loader_threads() == []
    assert time.monotonic() - began < 4


def test_epochs_leave_no_open_file() -> None:
    def opened() -> set[tuple[str, str]]:
        found = [Path("/proc/self/fd", name) for name in os.listdir("/proc/self/fd")]
        return {(fd.name, os.readlink(fd)) for fd in found if fd.is_symlink()}

    before = opened()  # of which other tests' may be closed at any time
    for _ in range(3):
        assert len(list(gathered([INPUTS], BATCHES, 2))) == len(BATCHES)
    assert opened() <= before


def test_reading_ahead_starts_no_process() -> None:
    """So that a GPU's process, which is slow to fork, is not forked at each epoch."""

    def children() -> set[str]:
        lists = Path("/proc/self/task").glob("*/children")
        return {number for found in lists for number in found.read_text().split()}

    before = children()
    with closing(gathered([INPUTS], BATCHES, 2)) as source:
        next(source)
        assert children() <= before
        assert len(loader_threads()) == 2


def test_a_loader_thread_that_cannot_be_started_is_a_resource_error() -> None:
    before = threading.stack_size(1 << 46)
    try:
        with pytest.raises(ResourceError, match=r"=2: no loader thread can be started \(can"):
            list(gathered([INPUTS], BATCHES, 2))
    finally:
        threading.stack_size(before)


def test_loading_leaves_the_handlers_and_the_mask_of_signals_as_they_were() -> None:
    def state() -> list[object]:
        mask = signal.pthread_sigmask(signal.SIG_BLOCK, [])
        return [mask, *(signal.getsignal(n) for n in (*SIGNALS, signal.SIGCHLD))]

    before = state()
    with closing(gathered([INPUTS], BATCHES, 2)) as source:
        next(source)
        assert state() == before


def test_a_signal_is_handled_while_a_batch_is_waited_for() -> None:
    called: list[float] = []
    before = signal.signal(signal.SIGUSR1, lambda number, frame: called.append(time.monotonic()))
    try:
        timer = threading.Timer(0.2, os.kill, (os.getpid(), signal.SIGUSR1))
        timer.start()
        began = time.monotonic()
        with closing(gathered([Answers(1.0)], BATCHES[:1], 1)) as source:
            next(source)
        timer.join()
    finally:
        signal.signal(signal.SIGUSR1, before)
    assert [when for when in called if when - began < 0.9]


# Real commands


@pytest.fixture(scope="module")
def pictures(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """40 training and 12 test images of two classes."""
    root = tmp_path_factory.mktemp("pictures")
    random = np.random.default_rng(0)
    for split, count in (("train", 20), ("test", 6)):
        for name in ("cat", "dog"):
            (root / split / name).mkdir(parents=True)
            for number in range(count):
                pixels = random.integers(0, 256, (20, 24, 3), dtype=np.uint8)
                Image.fromarray(pixels).save(root / split / name / f"{number}.jpg")
    return root


def options(root: Path) -> list[str]:
    return [
        "dataset=folder", f"dataset.root={root}", "dataset.classes=2", "dataset.shape=[3,16,16]",
        "batch_size=8", "epochs=2", "log_every=1", "model.net.width=8", "checkpoint.every=3",
        "logger=quiet",
    ]  # fmt: skip


@pytest.mark.slow
def test_a_run_is_the_same_with_loader_threads_in_each_of_two_processes(
    shell: Shell, pictures: Path
) -> None:
    done = shell.train(
        "-m", "loader.workers=0,2", *options(pictures), "parallel=ddp", "launch.cpu_processes=2",
        "hydra.sweep.dir=s",
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    alone, ahead = sorted((shell.folder / "s").glob("*_ddp_*"))
    for key in ("loss", "test_loss"):
        assert metrics(alone, key) == metrics(ahead, key)
        assert metrics(alone, key)
    done = shell.evaluate(f"ckpt={ahead}", "loader.workers=2", "hydra.run.dir=eval")
    assert f"accuracy {result(ahead)['accuracy']:.4f}" in done.stdout
    assert "  cat  " in done.stdout


def test_a_file_cut_short_ends_a_run_with_one_line_that_names_it(
    shell: Shell, pictures: Path, tmp_path: Path
) -> None:
    for path in pictures.rglob("*.jpg"):
        copy = tmp_path / "set" / path.relative_to(pictures)
        copy.parent.mkdir(parents=True, exist_ok=True)
        copy.write_bytes(path.read_bytes())
    victim = tmp_path / "set" / "train" / "dog" / "7.jpg"
    victim.write_bytes(victim.read_bytes()[:-300])
    done = shell.train(*options(tmp_path / "set"), "loader.workers=2", "max_steps=5")
    assert done.returncode == 4
    (line,) = done.stderr.splitlines()
    assert line.startswith(f"error: dataset.root={tmp_path / 'set'}: {victim} is no usable image")
