"""Worker processes of steps that take turns: stopped between these, and let go in the end."""

from __future__ import annotations

import gc
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import closing, suppress
from multiprocessing import active_children, get_context
from pathlib import Path

import pytest
from torch.utils.data import DataLoader, Dataset

import ninefold
from ninefold.api import workers
from ninefold.api.workers import RAN_ON
from tests.conftest import ROOT, wait_until

# From Python 3.12 on: pytest's own threads are there when workers are forked.
pytestmark = pytest.mark.filterwarnings("ignore:This process:DeprecationWarning")

COUNT = get_context("fork").Value("i")  # items that all workers have read


@pytest.fixture(autouse=True)
def no_workers_of_other_tests() -> None:
    """Let those of earlier tests end: time_steps would say that they ran on."""
    gc.collect()
    wait_until(lambda: not active_children(), seconds=20)


class Items(Dataset[int]):
    """Items that take a while to read."""

    def __len__(self) -> int:
        return 1_000_000

    def __getitem__(self, index: int) -> int:
        time.sleep(0.02)
        with COUNT:
            COUNT.value += 1
        return index


def reads() -> Iterator[None]:
    """A step that does nothing but wait for two workers."""
    for _ in DataLoader(Items(), num_workers=2, multiprocessing_context="fork"):
        yield


def states(processes: list[int]) -> str:
    """The states of processes as /proc has them: T is stopped, Z has ended; gone: nothing."""
    found = ""
    for process in processes:
        with suppress(FileNotFoundError):
            found += Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0]
    return found


def workers_of_this() -> list[int]:
    return [process.pid for process in active_children() if process.pid is not None]


def test_workers_read_nothing_while_another_step_has_its_turn() -> None:
    ahead = []

    def sleeps() -> None:
        before = COUNT.value
        time.sleep(0.05)
        ahead.append(COUNT.value - before)

    with closing(reads()) as loop:  # type: ignore[type-var]
        found = ninefold.time_steps({"reads": loop, "sleeps": sleeps}, minutes=0.1, show=False)
    assert sum(ahead[1:]) < 0.1 * len(ahead)  # 2 or more each, if they are not stopped
    assert RAN_ON not in found.caveats


@pytest.mark.parametrize("error", [KeyError, KeyboardInterrupt])
def test_workers_that_were_stopped_go_on_after_an_exception(error: type[BaseException]) -> None:
    def fails() -> None:
        if states(workers_of_this()) == "TT":
            raise error

    with closing(reads()) as loop:  # type: ignore[type-var]
        with pytest.raises(error):
            ninefold.time_steps({"fails": fails, "reads": loop}, show=False)
        left = workers_of_this()
        assert len(left) == 2
        assert "T" not in states(left)
        assert {os.getpgid(process) for process in left} == {os.getpgrp()}  # ^C reaches them


KILLED = """
import ninefold
from tests.api.test_workers import reads, states, workers_of_this

def kills():
    while True:
        if states(workers_of_this()) == "TT":
            print(*workers_of_this(), flush=True)
            input()
        yield

ninefold.time_steps({"kills": kills(), "reads": reads()}, show=False)
"""


def test_workers_that_are_stopped_end_with_a_process_that_is_killed() -> None:
    command = [sys.executable, "-c", KILLED]
    pipe = subprocess.PIPE
    # A session without a terminal, in which no shell sees to processes that are stopped.
    with subprocess.Popen(
        command, cwd=ROOT, stdin=pipe, stdout=pipe, text=True, start_new_session=True
    ) as process:
        assert process.stdout is not None
        stopped = [int(word) for word in process.stdout.readline().split()]
        assert states(stopped) == "TT"
        process.kill()
    wait_until(lambda: not states(stopped).strip("Z"), seconds=20)


def test_readers_that_several_steps_use_run_on_and_the_answer_says_so(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(workers, "STUCK_SECONDS", 0.2)
    with closing(reads()) as shared:  # type: ignore[type-var]
        steps = {name: lambda: next(shared) for name in "ab"}
        found = ninefold.time_steps(steps, minutes=0.05, show=False)
        assert RAN_ON in found.caveats
