"""The cost model: what it says of times that were made by it."""

from __future__ import annotations

import pytest

from ninefold.report.stats.costs import Costs, Model, efficiency, falls_below

GRADIENTS, ALPHA, SPEED = 4e6, 1e-4, 1e9
FIXED, SHARED = 1e-3, 32e-3  # seconds of a step: whatever the batch, and of the whole batch


def made(processes: int, weak: bool = False) -> Costs:
    compute = FIXED + (SHARED if weak else SHARED / processes)
    sent = 2 * (processes - 1) / processes * GRADIENTS
    return Costs(processes, compute, 4, sent, ALPHA * (processes - 1), SPEED)


def test_a_step_takes_between_the_longer_and_the_sum_of_computing_and_communicating() -> None:
    costs = Costs(2, compute=3e-3, messages=2, sent=1e6, alpha=1e-3, speed=1e9)
    assert costs.communication == pytest.approx(3e-3)
    assert (costs.least, costs.most) == pytest.approx((3e-3, 6e-3))


@pytest.mark.parametrize(
    ("compute", "alpha", "sent", "bound"),
    [
        (1.0, 1e-3, 1e6, "computing"),
        (1e-6, 1.0, 1e6, "the latency of its messages"),
        (1e-6, 1e-9, 1e9, "its bytes"),
    ],
)
def test_what_bounds_a_step_is_what_takes_longest(
    compute: float, alpha: float, sent: float, bound: str
) -> None:
    assert Costs(2, compute, 4, sent, alpha, 1e9).bound == bound


@pytest.mark.parametrize("weak", [False, True])
def test_what_is_predicted_of_more_processes_is_what_they_are_made_of(weak: bool) -> None:
    computes = {n: made(n, weak).compute for n in (1, 2, 4)}
    model = Model(computes, made(4, weak), weak)
    for processes in (8, 64):
        found, true = model.costs(processes), made(processes, weak)
        assert found.compute == pytest.approx(true.compute)
        assert found.communication == pytest.approx(true.communication)


def test_with_one_batch_size_alone_nothing_is_known_of_smaller_ones() -> None:
    assert not Model({4: 1e-3}, made(4), weak=False).known
    assert Model({4: 1e-3}, made(4, weak=True), weak=True).known


def test_an_efficiency_is_missed_from_where_the_model_first_misses_it() -> None:
    model, one = Model({n: made(n).compute for n in (1, 2, 4)}, made(4), False), FIXED + SHARED
    soonest = falls_below(0.5, model, one, False, slowest=True, first=5)
    latest = falls_below(0.5, model, one, False, slowest=False, first=5)
    assert soonest is not None
    assert latest is not None
    assert soonest <= latest
    for processes in range(5, soonest):
        assert efficiency(one, model.costs(processes).most, processes, False) >= 0.5
    assert efficiency(one, model.costs(soonest).most, soonest, False) < 0.5
    assert falls_below(0.0, model, one, False, slowest=True, first=5) is None
