"""The link between processes: its latency and speed, from timed all-reduces."""

from __future__ import annotations

import random
import time

import pytest
import torch
from torch import Tensor

from ninefold.engine.parallel import RankContext
from ninefold.engine.parallel.ddp import DDP
from ninefold.engine.parallel.none import Single
from ninefold.measure.link import SIZES, fitted, time_link


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


def test_noise_of_ten_percent_moves_them_little() -> None:
    chance = random.Random(0)
    for _ in range(100):
        times = [each * chance.uniform(0.9, 1.1) for each in seconds(1e-3, 1e8, 2)]
        found = fitted(times, 2)
        assert found.alpha_seconds == pytest.approx(1e-3, rel=0.2)
        assert found.bytes_per_second == pytest.approx(1e8, rel=0.25)


def test_one_process_has_no_link_and_none_is_timed_unless_asked() -> None:
    context = RankContext(0, 1, torch.device("cpu"))
    assert time_link(1.0, Single(), context) is None
    assert time_link(0, DDP(), RankContext(0, 2, torch.device("cpu"))) is None


class Limited(Single):
    """A link that passes what it has saved up at once, and RATE bytes a second from then on."""

    RATE, BURST, LATENCY = 5e7, 5e5, 2e-4

    def __init__(self) -> None:
        self.__dict__.update(saved=self.BURST, last=time.perf_counter())

    def all_reduce_sum(self, values: Tensor) -> Tensor:
        mine, now = self.__dict__, time.perf_counter()
        saved = min(self.BURST, mine["saved"] + self.RATE * (now - mine["last"]))
        wait = max(0.0, values.nbytes - saved) / self.RATE
        mine.update(saved=max(0.0, saved - values.nbytes), last=now + wait)
        time.sleep(wait + self.LATENCY)
        return values


def test_the_speed_of_a_link_that_saves_up_is_the_one_with_which_it_goes_on() -> None:
    found = time_link(0.3, Limited(), RankContext(0, 2, torch.device("cpu")))
    assert found is not None
    assert found.bytes_per_second == pytest.approx(Limited.RATE, rel=0.1)
