"""The link between processes: its latency and speed, from timed all-reduces."""

from __future__ import annotations

import itertools
import time
from contextlib import closing
from pathlib import Path

import pytest
import torch
from torch import Tensor

from benchmarks import ours
from ninefold.engine.parallel import RankContext
from ninefold.engine.parallel.ddp import DDP
from ninefold.engine.parallel.none import Single
from ninefold.measure.link import SIZES, fitted, time_link
from ninefold.train.warmup import alone, first_batches
from tests.parallel.ranks import on_ranks


def seconds(alpha: float, speed: float, processes: int) -> list[float]:
    return [alpha + 2 * (processes - 1) / processes * size / speed for size in SIZES]


@pytest.mark.parametrize("processes", [2, 8])
@pytest.mark.parametrize(("alpha", "speed"), [(1e-3, 1e8), (1e-5, 1e10), (0.0, 1e6)])
def test_latency_and_speed_are_those_that_the_times_were_made_of(
    alpha: float, speed: float, processes: int
) -> None:
    found = fitted(seconds(alpha, speed, processes), processes)
    assert found.alpha_seconds == pytest.approx(alpha, abs=1e-9)
    assert found.bytes_per_second == pytest.approx(speed, rel=1e-6)


def test_one_process_has_no_link_and_none_is_timed_unless_asked() -> None:
    context = RankContext(0, 1, torch.device("cpu"))
    assert time_link(1.0, Single(), context) is None
    assert time_link(0, DDP(), RankContext(0, 2, torch.device("cpu"))) is None


class Limited(Single):
    """A link that passes what it has saved up at once, and RATE bytes a second from then on.

    now: the time of the machine, which passes only while it sends.
    """

    RATE, BURST, LATENCY = 5e7, 5e5, 2e-4

    def __init__(self) -> None:
        self.__dict__.update(saved=self.BURST, now=0.0)

    def all_reduce_sum(self, values: Tensor) -> Tensor:
        mine = self.__dict__
        wait = max(0.0, values.nbytes - mine["saved"]) / self.RATE
        left = max(0.0, mine["saved"] - values.nbytes) + self.RATE * self.LATENCY
        mine.update(saved=min(self.BURST, left), now=mine["now"] + wait + self.LATENCY)
        return values


def test_the_speed_of_a_link_that_saves_up_is_the_one_with_which_it_goes_on(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    link = Limited()
    monkeypatch.setattr("time.perf_counter", lambda: link.__dict__["now"])
    found = time_link(0.3, link, RankContext(0, 2, torch.device("cpu")))
    assert found is not None
    assert found.bytes_per_second == pytest.approx(Limited.RATE, rel=0.1)


def test_a_step_without_communication_ends_when_the_slowest_process_has_ended_it(
    tmp_path: Path,
) -> None:
    """Here the two take turns in being the slow one."""
    two = ("parallel=ddp", "parallel.processes=2", "device=cpu", "clock.link=0.4", "threads=1",
           "dataset.limit=256", "max_steps=8", "checkpoint.every=null")  # fmt: skip
    ours.job(*two)  # what it imports is imported once

    def run() -> float:
        with ours.training(*two) as run, closing(first_batches(run.batches)) as batches:
            turns = itertools.count(run.context.rank)

            def step(inputs: Tensor, targets: Tensor) -> None:
                time.sleep(0.02 * (next(turns) % 2))

            return alone(run, run.warmup.link_seconds, step, batches)

    for seconds in on_ranks(2, run, tmp_path):
        assert seconds > 0.018  # each of them sleeps for half as long in the mean
