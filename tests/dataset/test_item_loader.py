"""Worker processes and threads read a user's Dataset ahead, and change nothing that is read."""

import gc
import os
import re
import resource
import signal
import threading
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from omegaconf import OmegaConf

from ninefold.dataset.item_loader import ItemBatches
from ninefold.dataset.items import Items
from ninefold.dataset.loader import HostSource, one_ahead
from ninefold.dataset.mapped import Mapped
from ninefold.dataset.plan import on_host, processes_ahead
from ninefold.dataset.preparation import ImagePreparation
from ninefold.engine.batches import Batches, shard
from ninefold.engine.parallel import RankContext
from ninefold.engine.parallel.none import Single
from ninefold.errors import DataError, Failure, ProcessNotEnded, ResourceError, limit_failure
from ninefold.signals import SIGNALS
from ninefold.train.build import loader_plan
from ninefold.tree import each
from ninefold.waits import poll_until
from tests.conftest import ROOT, metrics, wait_until
from tests.dataset.kit import ALONE, children, epoch, files, nothing
from tests.faults.runs import STRATEGY, last_step
from tests.forks import exit_code, fork
from tests.kit import same

MINE, BOTH = "tests.dataset.mine", ("train", "test")


@pytest.fixture(autouse=True)
def none_left(request: pytest.FixtureRequest) -> Iterator[None]:
    """Whatever a test does, no process and no open file outlives its dataset."""
    if "shell" in request.fixturenames:  # which looks itself
        yield
        return
    before, opened = children(), files()
    yield
    gc.collect()
    assert children() <= before
    assert poll_until(lambda: files() <= opened, 5)  # DataLoader's threads close some


def mapped(workers: int, cls: str, patience: float = 60, **arguments: Any) -> Mapped:
    """A dataset of this class of tests.dataset.mine with so many workers."""
    more = {name: arguments.pop(name) for name in ("shape",) if name in arguments}
    node = {"_target_": f"{MINE}.{cls}", **arguments}
    dataset = Mapped(train=node, test=node, **{"shape": (1, 8, 8), **more})
    if workers:
        dataset.start_workers(workers, BOTH, patience)
    return dataset


def read(
    workers: int,
    cls: str = "Digits",
    start: int = 0,
    context: RankContext = ALONE,
    **arguments: Any,
) -> list[Any]:
    """All that two epochs from a step of each on and an evaluation are given."""
    dataset, prepare = mapped(workers, cls, **arguments), ImagePreparation(channels=1)
    train, test = (HostSource(dataset.load(split), workers) for split in BOTH)
    found = []
    for number in (0, 3):
        found += epoch(train, prepare, context, number, start)
        found += shard(test, 24, prepare, context)  # larger ones than in training
    return found


@pytest.mark.parametrize("workers", [1, 2])
def test_random_items_are_the_same_with_any_number_of_worker_processes(workers):
    for start in (0, 5):
        assert same(read(workers, start=start), read(0, start=start))
    second = RankContext(1, 2, torch.device("cpu"))
    assert same(read(workers, context=second), read(0, context=second))


def test_processes_read_a_users_class_if_it_is_asked_for_them():
    options: Any = {"pinned": "auto", "free": None, "cores": 2}
    before, other = children(), mapped(2, "Digits", moves=False)
    assert len(children() - before) == 2
    how = on_host(other.load("train"), 8, ALONE, workers=2, **options)
    assert str(how).startswith("loader: 2 processes, 5 slots of ")
    asked = on_host(mapped(0, "Digits").load("train"), 8, ALONE, workers="auto", **options)
    assert asked.workers == 0


def test_on_a_gpu_processes_read_a_users_class_unless_another_number_is_asked_for():
    gpu = RankContext(0, 1, torch.device("cuda", 0), local_size=2)
    assert processes_ahead(gpu, 8) == 3
    assert processes_ahead(gpu, 128) == 16
    assert processes_ahead(gpu, 1) == processes_ahead(ALONE, 8) == 0
    options: Any = {"pinned": False, "free": None, "cores": 8}
    examples = mapped(1, "Digits").load("train")
    assert on_host(examples, 8, gpu, workers="auto", **options).workers == 3


@pytest.mark.parametrize(
    ("room", "count"),
    [
        ({"free": 10**6, "shared": 10**6, "most": 64}, 3),
        ({"free": 10**6, "shared": 10**5, "most": 0}, 0),
        ({"free": 10**5, "shared": 10**6, "most": 0}, 0),
        ({"free": None, "shared": 10**6, "most": 1024}, 0),  # rows of an evaluation
    ],
    ids=str,
)
def test_on_a_gpu_no_process_reads_a_users_class_where_all_have_too_little_memory(room, count):
    """Of the host or of /dev/shm. Those that were started before it was known end."""
    gpu = RankContext(0, 1, torch.device("cuda", 0), local_size=2)
    before, dataset = children(), mapped(3, "Digits")
    examples = dataset.load("train")
    options = {"workers": "auto", "pinned": "auto"}
    assert on_host(examples, 8, gpu, cores=8, **room, **options).workers == count
    job = OmegaConf.create({"loader": options, "dataset": {}, "batch_size": 8})
    assert loader_plan(job, dataset, [examples], 8, Single(), ALONE).workers == 0
    assert children() <= before


def test_a_thread_that_reads_ahead_changes_no_batch_of_a_set_nor_of_another_meanwhile():
    dataset = mapped(2, "Digits", moves=False)
    rows = [np.arange(n, n + 4) for n in range(0, 20, 4)]
    train, test = (dataset.load(split).reader for split in BOTH)
    assert train is not None
    assert test is not None
    expected = [each(torch.clone, batch) for batch in train(rows, ahead=True)]
    found = []
    with closing(one_ahead(train(rows, ahead=True))) as reading:
        for batch in reading:
            found.append(batch)
            assert same([*test(rows, ahead=True)], expected)
    assert same(found, expected)


def test_workers_are_forked_before_anything_is_read_and_never_again():
    """So each opens what a class opens for its first item, as with torch's DataLoader."""
    before = children()
    dataset = mapped(2, "Owned", shape=(1, 1, 1))
    forked = children() - before
    source = HostSource(dataset.load("train"), 2)
    for number in (0, 1):
        for _, pids in epoch(source, ImagePreparation(channels=1), number=number):
            reader, opened_by = pids.unique(dim=0)[0].int().tolist()
            assert reader == opened_by
            assert reader in forked
    assert children() - before == forked


def test_a_set_that_is_read_amid_another_changes_neither():
    """As an evaluation amid an epoch; both are read by the same processes."""
    dataset, prepare = mapped(2, "Digits"), ImagePreparation(channels=1)
    train, test = (HostSource(dataset.load(split), 2) for split in BOTH)
    alone = HostSource(mapped(0, "Digits").load("train"))
    plain, found = (
        Batches(source, 8, 5, prepare, ALONE).epoch(0, 0, nothing, nothing)
        for source in (alone, train)
    )
    for number, (mine, his) in enumerate(zip(found, plain, strict=True)):
        assert same([*mine], [*his])
        if number in (2, 3, 7):
            taken = next(shard(test, 24, prepare, ALONE))
            assert same([*taken], [*next(shard(alone, 24, prepare, ALONE))])


def failure(how: str, workers: int, patience: float = 60) -> Failure:
    source = HostSource(mapped(workers, "Failing", patience, how=how).load("train"), workers)
    with pytest.raises(Failure) as caught:
        epoch(source, ImagePreparation(channels=1))
    return caught.value


@pytest.mark.parametrize("how", ["raise_", "interrupt", "generator", "odd", "unsaid"])
def test_whatever_an_item_raises_is_the_same_line_with_workers_and_names_its_code(how):
    alone, apart = failure(how, 0), failure(how, 2)
    assert (str(alone), alone.code) == (str(apart), apart.code)
    assert "tests/dataset/mine.py:" in str(apart)
    assert f" in {how}: raise " in str(apart)
    assert how != "raise_" or f"in {how}" in str(apart.__cause__)  # its traceback is kept


@pytest.mark.parametrize(
    ("how", "kind", "said"),
    [
        ("write", DataError, "reading what a worker process has sent raised "),
        ("leave", DataError, "a worker process left with exit code 0; the log"),
        ("realtime", DataError, f"a worker process died of signal {signal.SIGRTMIN + 5}; the log"),
        (
            "hang",
            ProcessNotEnded,
            "no batch has come for 1 s; the dataset's class waits for something",
        ),
    ],
)
def test_a_worker_that_ends_or_hangs_is_one_line_that_says_how(how, kind, said):
    found = failure(how, 2, patience=1 if how == "hang" else 60)
    assert type(found) is kind
    assert said in str(found)


def test_workers_ignore_signals_and_end_with_a_process_that_is_killed():
    reader, writer = os.pipe()

    def holder() -> None:
        dataset = mapped(2, "Digits")
        for pid in children():
            for number in SIGNALS:
                os.kill(pid, number)
        source = HostSource(dataset.load("train"), 2)
        (inputs, _), *_ = epoch(source, ImagePreparation(channels=1))
        assert (inputs != 0).any()
        os.write(writer, " ".join(map(str, children())).encode())
        os.kill(os.getpid(), signal.SIGKILL)

    assert exit_code(fork(holder)) == -signal.SIGKILL
    workers = [int(number) for number in os.read(reader, 100).split()]
    os.close(reader), os.close(writer)
    assert len(workers) == 2
    assert poll_until(lambda: not any(Path(f"/proc/{pid}").exists() for pid in workers), 5)


def test_too_many_worker_processes_are_a_limit_on_open_files_and_none_is_left():
    """More than this process may have open files: as root no limit of processes counts."""

    def limited() -> None:
        most = len(os.listdir("/proc/self/fd")) + 20
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
        with pytest.raises(OSError, match="Too many open files") as caught:
            mapped(50, "Digits")
        assert str(limit_failure(caught.value, "")).startswith("error: files=exhausted: ")
        assert not children()

    assert exit_code(fork(limited)) == 0


def test_a_batch_that_shared_memory_does_not_take_is_one_line_and_leaves_no_file():
    rows = [torch.zeros(1 << 10)] * 256
    batches = ItemBatches(lambda split: Items(rows, "dataset.train", "list"))

    def limited() -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (4096, 4096))
        _, (failure, _) = batches[1, ("train", np.arange(256), 0, 0)]
        assert isinstance(failure, ResourceError)
        assert re.match(r"error: file=/dev/shm: .*; batches are handed over there", str(failure))
        assert not [*Path("/dev/shm").glob(f"torch_{os.getpid()}_*")]

    assert exit_code(fork(limited)) == 0


# Real commands


def job(train: str) -> list[str]:
    """A run on items of a class of tests.dataset.mine, such as `Slow, count: 96`."""
    return [
        "dataset=mapped", f"dataset.train={{_target_: {MINE}.{train}}}", "dataset.classes=10",
        f"dataset.test={{_target_: {MINE}.Digits, count: 40}}", "dataset.shape=[1,8,8]",
        "batch_size=16", "epochs=3", "log_every=1", "logger=jsonl", "checkpoint.every=2",
        "clock.warmup=0", "device=cpu", *STRATEGY["none"], "loader.workers=2",
    ]  # fmt: skip


def test_a_run_with_workers_saves_and_leaves_no_process_after_a_signal_to_all_of_them(shell):
    """As from a terminal or a scheduler, which send it to the workers too."""
    run = shell.folder / "run"
    process = shell.start(str(ROOT / "train.py"), *job("Slow, count: 96"), f"hydra.run.dir={run}")
    wait_until(lambda: (run / "metrics.jsonl").exists() and metrics(run, "loss"), process)
    started = shell.processes()
    assert len(started) >= 5  # launcher, forkserver, rank, two workers
    for pid in sorted(started, reverse=True):  # the newest first
        os.kill(pid, signal.SIGTERM)
    shell.finish(process, code=75)
    assert not shell.survivors()
    assert 0 < last_step(run) < 18


def test_no_lock_that_a_killed_worker_has_held_is_waited_for():
    dataset = mapped(2, "Digits")
    (loader,) = dataset._loaders
    loader._answers._workers_done_event._cond.acquire()  # as of one that was killed there
    ending = threading.Thread(target=loader._answers.__del__, daemon=True)
    ending.start()
    ending.join(5)
    assert not ending.is_alive()


def test_a_process_that_an_item_forks_is_not_left(shell):
    shell.train(*job("Failing, how: child"), "loader.workers=2", "hydra.run.dir=run", code=0)
    assert len(metrics(shell.folder / "run", "loss")) == 12


@pytest.mark.parametrize(
    ("how", "code", "said"), [("kill", 5, "killed (SIGKILL); most of"), ("crash", 4, "SIGSEGV; ")]
)
def test_a_worker_that_ends_is_one_line_and_a_crash_leaves_its_stack(shell, how, code, said):
    done = shell.train(*job(f"Failing, how: {how}"), "hydra.run.dir=run", code=code)
    (line,) = done.stderr.splitlines()
    assert line.startswith("error: loader.workers=2: a worker process ")
    assert said in line
    log = (shell.folder / "run" / "run.log").read_text()
    assert ("Segmentation fault" in log and "in crash" in log) == (how == "crash")
