"""Loader processes change when bytes are gathered, and nothing else."""

from __future__ import annotations

import gc
import itertools
import multiprocessing
import os
import resource
import signal
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import torch
from PIL import Image
from torch import Tensor

from ninefold.dataset import Examples, Rows, loader
from ninefold.dataset.batches import Batches, Preparation, shard
from ninefold.dataset.loader import gathered
from ninefold.errors import DataError, ResourceError
from ninefold.parallel import Place
from ninefold.signals import SIGNALS
from tests.conftest import ROOT, Shell, metrics, result

ALONE = Place(0, 1, torch.device("cpu"))
IMAGES = np.random.default_rng(0).integers(0, 256, (103, 3, 6, 6), dtype=np.uint8)
EXAMPLES = Examples(IMAGES, np.arange(103))
BATCHES = [np.arange(103)[first : first + 4] for first in range(0, 103, 4)]


class Answers:
    """Images whose one pixel is what `answer` says in the process that gathers them."""

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
    prepare = Preparation(3, flip=True, crop=2)
    batches = Batches(EXAMPLES, 8, 5, prepare, place, workers)
    return list(batches.epoch(3, start, lambda: None, lambda phase: None))


def same(left: Sequence[tuple[Tensor, ...]], right: Sequence[tuple[Tensor, ...]]) -> bool:
    pairs = zip(left, right, strict=True)
    return all(torch.equal(a, c) and torch.equal(b, d) for (a, b), (c, d) in pairs)


@pytest.fixture(autouse=True)
def none_left() -> Iterator[None]:
    """Whatever a test does, no loader process outlives it."""
    yield
    assert multiprocessing.active_children() == []


@pytest.mark.parametrize("workers", [1, 2, 3, 40])
def test_the_same_batches_are_trained_on_with_any_number_of_loader_processes(workers: int) -> None:
    assert same(epoch(workers), epoch(0))


def test_the_same_batches_follow_from_any_position_with_loader_processes() -> None:
    whole = epoch(0)
    for start in range(len(whole) + 1):
        assert same(epoch(2, start), whole[start:])


def test_each_process_of_a_run_has_its_own_part_with_loader_processes() -> None:
    for rank in range(2):
        place = Place(rank, 2, torch.device("cpu"))
        assert same(epoch(2, place=place), epoch(0, place=place))


def test_the_same_examples_are_evaluated_with_loader_processes() -> None:
    parts = [list(shard(EXAMPLES, 10, Preparation(3), ALONE, workers)) for workers in (0, 2)]
    assert same(*parts)


def test_a_batch_is_not_overwritten_while_it_is_in_use() -> None:
    with closing(gathered(IMAGES, BATCHES, 2)) as source:
        for rows, images in zip(BATCHES, source, strict=True):
            time.sleep(0.01)  # as many batches as may be are gathered meanwhile
            assert np.array_equal(images.numpy(), IMAGES[rows])


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
                raise DataError("dataset.root", "x", "image 40 is broken", "found", "mend it")
            return 0

    source = gathered(Broken(), BATCHES, workers)
    assert len(list(itertools.islice(source, 10))) == 10
    with pytest.raises(DataError) as caught:
        next(source)
    assert str(caught.value) == "error: dataset.root=x: image 40 is broken; found; mend it"


@pytest.mark.parametrize("seconds", [0, 60], ids=["idle", "at work"])
def test_a_loader_process_that_is_killed_is_a_resource_error_at_once(seconds: float) -> None:
    class Slow(Answers):
        def answer(self, rows: Rows) -> int:
            time.sleep(seconds if 0 not in rows else 0)
            return 0

    source = gathered(Slow(), BATCHES, 1)
    next(source)
    (victim,) = multiprocessing.active_children()
    assert victim.pid is not None
    os.kill(victim.pid, signal.SIGKILL)
    began = time.monotonic()
    line = (
        rf"loader.workers=1: a loader process \(pid {victim.pid}\) was killed \(SIGKILL\); .*memory"
    )
    with pytest.raises(ResourceError, match=line):
        list(source)
    assert time.monotonic() - began < 4  # DataLoader would look after 5


def test_a_loader_process_that_is_killed_while_it_is_waited_for_is_noticed_at_once() -> None:
    class Suicide(Answers):
        def answer(self, rows: Rows) -> int:
            time.sleep(0.2)
            os.kill(os.getpid(), signal.SIGKILL)
            return 0

    began = time.monotonic()
    with pytest.raises(ResourceError, match=r"was killed \(SIGKILL\)"):
        list(gathered(Suicide(), BATCHES, 2))
    assert time.monotonic() - began < 4


def test_a_loader_process_that_is_killed_as_it_begins_is_a_resource_error(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    start = loader._start

    def dead(*args: Any) -> Iterator[Any]:
        iterator = start(*args)
        while multiprocessing.active_children():  # which forgets the dead
            time.sleep(0.01)
        return iterator

    monkeypatch.setattr(loader, "_begin", lambda number: os.kill(os.getpid(), signal.SIGKILL))
    monkeypatch.setattr(loader, "_start", dead)
    with pytest.raises(ResourceError, match=r"was killed \(SIGKILL\)"):
        list(gathered(IMAGES, BATCHES, 2))


def test_a_batch_that_takes_longer_than_a_look_is_waited_for() -> None:
    assert len(list(gathered(Answers(2.5 * loader.LOOK), BATCHES[:2], 1))) == 2


def test_a_signal_to_the_group_leaves_the_loader_processes_at_work() -> None:
    with closing(gathered(IMAGES, BATCHES, 2)) as source:
        for number, (rows, images) in enumerate(zip(BATCHES, source, strict=True)):
            for child in multiprocessing.active_children() if number < 5 else []:
                assert child.pid is not None
                for sent in SIGNALS:
                    os.kill(child.pid, sent)
            assert np.array_equal(images.numpy(), IMAGES[rows])


def test_a_signal_reaches_no_loader_process_before_it_ignores_it() -> None:
    class Handled(Answers):
        def answer(self, rows: Rows) -> int:
            return os.getpid() != parent and called != []

    parent, called = os.getpid(), list[int]()
    before = signal.signal(signal.SIGTERM, lambda number, frame: called.append(os.getpid()))
    birth = os.fork

    def fork() -> int:  # a signal to the group as early as can be
        child = birth()
        if not child:
            os.kill(os.getpid(), signal.SIGTERM)
        return child

    os.fork = fork
    try:
        answers = [int(images.max()) for images in gathered(Handled(), BATCHES, 2)]
    finally:
        os.fork = birth
        signal.signal(signal.SIGTERM, before)
    assert answers == [0] * len(BATCHES)


def test_the_training_process_gets_its_own_signals_and_handlers_back() -> None:
    def state() -> list[object]:
        mask = signal.pthread_sigmask(signal.SIG_BLOCK, [])
        return [mask, *(signal.getsignal(n) for n in (*SIGNALS, signal.SIGCHLD))]

    before = state()
    assert before[0] == set()
    with closing(gathered(IMAGES, BATCHES, 2)) as source:
        next(source)
        assert state() == before


def test_a_loader_process_uses_one_thread() -> None:
    class Threads(Answers):
        def answer(self, rows: Rows) -> int:
            return torch.get_num_threads()

    torch.set_num_threads(2)
    try:
        answers = [int(images.max()) for images in gathered(Threads(), BATCHES, 2)]
    finally:
        torch.set_num_threads(1)
    assert answers == [1] * len(BATCHES)


def leave_by_break() -> None:
    for _ in gathered(Answers(0.1), BATCHES, 2):
        break


def leave_by_exception() -> None:
    def train() -> None:
        batches = Batches(EXAMPLES, 8, 0, Preparation(3), ALONE, 2)
        for _ in batches.epoch(0, 0, lambda: None, lambda phase: None):
            raise KeyError

    with pytest.raises(KeyError):
        train()


def leave_by_forgetting() -> None:
    batches = Batches(EXAMPLES, 8, 0, Preparation(3), ALONE, 2)
    source = batches.epoch(0, 0, lambda: None, lambda phase: None)
    next(source)
    del source


@pytest.mark.parametrize("leave", [leave_by_break, leave_by_exception, leave_by_forgetting])
def test_leaving_an_epoch_ends_its_loader_processes(leave: object) -> None:
    assert callable(leave)
    began = time.monotonic()
    leave()
    assert multiprocessing.active_children() == []
    assert time.monotonic() - began < 4


def test_loader_processes_die_with_a_training_process_that_is_killed(shell: Shell) -> None:
    code = (
        "import multiprocessing, time\n"
        "from tests.dataset.test_loader import BATCHES, Answers\n"
        "from ninefold.dataset.loader import gathered\n"
        "source = gathered(Answers(0.01), BATCHES, 2)\n"
        "next(source)\n"
        "print(len(multiprocessing.active_children()), flush=True)\n"
        "time.sleep(60)\n"
    )
    process = shell.start("-c", code, env={"PYTHONPATH": str(ROOT)})
    assert process.stdout is not None
    assert process.stdout.readline() == "2\n"
    assert len(shell.processes()) == 3
    process.kill()
    assert shell.survivors(1) == []  # DataLoader's own processes look for their parent every 5
    process.communicate()


@contextmanager
def files_left(count: int) -> Iterator[None]:
    """So many can be opened; the numbers of any that were closed meanwhile are taken."""
    gc.collect()  # what other tests left would close theirs in between
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    highest = max(map(int, os.listdir("/proc/self/fd")))
    with ExitStack() as taken:
        while taken.enter_context(Path(os.devnull).open()).fileno() <= highest:
            pass
        resource.setrlimit(resource.RLIMIT_NOFILE, (highest + 2 + count, hard))
        try:
            yield
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def test_epochs_leave_no_open_file() -> None:
    gc.collect()
    gc.disable()
    try:
        opened = []
        for _ in range(3):
            assert len(list(gathered(IMAGES, BATCHES, 2))) == len(BATCHES)
            opened.append(len(os.listdir("/proc/self/fd")))
    finally:
        gc.enable()
    assert opened[0] == opened[1] == opened[2]


@pytest.mark.parametrize("files", [5, 10], ids=["none", "one of two"])
def test_a_loader_process_that_cannot_be_started_is_a_resource_error(files: int) -> None:
    with files_left(files):
        with pytest.raises(ResourceError, match=r"loader.workers=2: .*Too many open files"):
            list(gathered(IMAGES, BATCHES, 2))
        gc.collect()  # pytest tells what fails in a destructor


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


def test_a_run_is_the_same_with_loader_processes_in_each_of_two_processes(
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


def parent(pid: int) -> int:
    try:
        return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
    except OSError:  # it ended meanwhile
        return 0


def test_a_loader_process_that_is_killed_ends_a_run_with_one_line(shell: Shell) -> None:
    process = shell.start(
        str(ROOT / "train.py"), "dataset=synthetic", "dataset.train_count=200000",
        "dataset.shape=[1,8,8]", "loader.workers=2", "log_every=1",
        "clock.warmup=0",  # its loader processes are not those of the training
    )  # fmt: skip
    deadline = time.monotonic() + 120
    loaders: list[int] = []
    while not loaders and time.monotonic() < deadline:
        time.sleep(0.1)  # launcher, forkserver, worker, loader process
        loaders = [p for p in shell.processes() if parent(parent(parent(p))) == process.pid]
    os.kill(loaders[0], signal.SIGKILL)
    stderr = process.communicate(timeout=60)[1]
    assert process.returncode == 5
    (line,) = stderr.splitlines()
    start = f"error: loader.workers=2: a loader process (pid {loaders[0]}) was killed (SIGKILL); "
    assert line.startswith(start)


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
