"""The clock: training steps alone, and where their time goes."""

from __future__ import annotations

import time

import pytest
import torch

from ninefold.engine.clock import PHASES, Clock

CPU = torch.device("cpu")
NAP = 0.02


def elapsed(since: float) -> float:
    return time.perf_counter() - since


def nap() -> float:
    """Sleep; returns how long it was in truth, which on a busy machine is longer."""
    since = time.perf_counter()
    time.sleep(NAP)
    return elapsed(since)


def test_paused_time_does_not_count() -> None:
    clock = Clock(CPU, sample=0)
    since = time.perf_counter()
    clock.start()
    running = nap()
    with clock.paused():
        paused = nap() + nap() + nap()
    running += nap()
    clock.stop()
    whole = elapsed(since)
    assert running <= clock.seconds <= whole - paused


def test_time_between_stop_and_start_does_not_count() -> None:
    clock = Clock(CPU, sample=0)
    clock.seconds = 100.0  # a resumed run goes on from what it had
    since = time.perf_counter()
    clock.start()
    running = nap()
    clock.stop()
    outside = nap()
    clock.start()
    clock.stop()
    assert 100 + running <= clock.seconds <= 100 + elapsed(since) - outside


def take_step(clock: Clock, phases: tuple[str, ...]) -> tuple[float, float]:
    """A step of a nap in each phase: how long it was at least and at most."""
    since = time.perf_counter()
    clock.begin_step()
    least = sum(_phase(clock, phase) for phase in phases)
    clock.end_step()
    return least, elapsed(since)


def _phase(clock: Clock, phase: str) -> float:
    took = nap()
    clock.mark(phase)
    return took


def test_the_phases_of_a_step_add_up_to_it() -> None:
    clock = Clock(CPU, sample=1)
    least, most = take_step(clock, PHASES)
    phases = clock.phase_seconds(steps=1)
    assert tuple(phases) == PHASES
    assert all(seconds >= NAP for seconds in phases.values())
    assert least <= sum(phases.values()) <= most


def test_one_step_in_so_many_is_sampled_and_stands_for_all() -> None:
    clock = Clock(CPU, sample=3)
    bounds = [take_step(clock, ("forward",)) for _ in range(7)]
    seconds = clock.phase_seconds(steps=7)["forward"]
    assert clock.sampled_steps == 3
    sampled = (bounds[0], bounds[3], bounds[6])
    least, most = (sum(bound[side] for bound in sampled) for side in (0, 1))
    assert least / 3 * 7 <= seconds <= most / 3 * 7


@pytest.mark.parametrize(("sample", "steps"), [(0, 3), (5, 0)])
def test_there_are_no_phases_while_no_step_is_sampled(sample: int, steps: int) -> None:
    clock = Clock(CPU, sample)
    for _ in range(steps):
        take_step(clock, ("forward",))
    assert clock.phase_seconds(steps) == {}
    assert clock.sampled_steps == 0


@pytest.mark.gpu
def test_a_gpu_that_is_the_limit_still_works_when_all_steps_are_queued() -> None:
    clock = Clock(torch.device("cuda", 0), sample=0)
    work = torch.ones(8192, 8192, device="cuda")
    torch.mm(work, work)
    clock.start()
    for _ in range(10):
        torch.mm(work, work)
    clock.stop()
    assert clock.queued_seconds is not None
    assert clock.seconds / 2 < clock.queued_seconds <= clock.seconds


def test_both_ends_wait_for_each_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    waited: list[int] = []
    monkeypatch.setattr(torch.cuda, "synchronize", waited.append)
    clock = Clock(CPU, sample=0, gpus=[0, 2])  # a network on the CPU and two GPUs
    clock.start()
    assert waited == [0, 2]
    clock.stop()
    assert waited == [0, 2, 0, 2]
