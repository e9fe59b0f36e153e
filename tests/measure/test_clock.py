"""The clock: training steps alone, and where their time goes."""

import time
from types import SimpleNamespace

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


def test_paused_time_does_not_count():
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


def test_time_between_stop_and_start_does_not_count():
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
    least = 0.0
    for phase in phases:
        least += nap()
        clock.mark(phase)
    clock.end_step()
    return least, elapsed(since)


def test_the_phases_of_a_step_add_up_to_it():
    clock = Clock(CPU, sample=1)
    least, most = take_step(clock, PHASES)
    phases = clock.phase_seconds(steps=1)
    assert tuple(phases) == PHASES
    assert all(seconds >= NAP for seconds in phases.values())
    assert least <= sum(phases.values()) <= most


def test_one_step_in_so_many_is_sampled_and_stands_for_all():
    clock = Clock(CPU, sample=3)
    bounds = [take_step(clock, ("forward",)) for _ in range(7)]
    seconds = clock.phase_seconds(steps=7)["forward"]
    assert clock.sampled_steps == 3
    sampled = (bounds[0], bounds[3], bounds[6])
    least, most = (sum(bound[side] for bound in sampled) for side in (0, 1))
    assert least / 3 * 7 <= seconds <= most / 3 * 7


@pytest.mark.parametrize(("sample", "steps"), [(0, 3), (5, 0)])
def test_there_are_no_phases_while_no_step_is_sampled(sample, steps):
    clock = Clock(CPU, sample)
    for _ in range(steps):
        take_step(clock, ("forward",))
    assert clock.phase_seconds(steps) == {}
    assert clock.sampled_steps == 0


@pytest.mark.gpu
def test_a_gpu_that_is_the_limit_still_works_when_all_steps_are_queued():
    clock = Clock(torch.device("cuda", 0), sample=2)
    work = torch.ones(8192, 8192, device="cuda")
    torch.mm(work, work)
    clock.start()
    for _ in range(10):
        clock.begin_step()
        for phase in PHASES:
            torch.mm(work, work)
            clock.mark(phase)
        clock.end_step()
    clock.stop()
    assert clock.behind == 1


class Stream:
    """A stream of kernels, of which a GPU has at most 1000 queued, and a host that launches them.

    launch, kernel: seconds that it takes to launch one and to execute it.
    """

    def __init__(self, launch: float, kernel: float) -> None:
        self.now, self.ends, self._launch, self._kernel = 0.0, [0.0], launch, kernel

    def launches(self, count: int) -> None:
        for _ in range(count):
            self.now += self._launch
            if len(self.ends) > 1000:
                self.now = max(self.now, self.ends[-1000])
            self.ends.append(max(self.now, self.ends[-1]) + self._kernel)

    def event(self, enable_timing: bool) -> SimpleNamespace:
        event = SimpleNamespace(end=0.0)
        event.record = lambda stream: setattr(event, "end", stream.ends[-1])
        event.query = lambda: event.end <= self.now
        event.elapsed_time = lambda after: 1000 * (after.end - event.end)
        return event


@pytest.mark.parametrize(("launch", "behind"), [(5e-6, 1.0), (20e-6, 0.0)])
@pytest.mark.parametrize("kernels", [100, 1000])
def test_a_gpu_is_behind_however_many_kernels_a_step_has(launch, behind, kernels, monkeypatch):
    stream = Stream(launch, kernel=10e-6)
    on_streams({0: stream}, monkeypatch)
    clock = Clock(torch.device("cuda", 0), sample=4)
    clock.start()
    assert clock.behind is None
    for _ in range(40):
        clock.begin_step()
        for phase, share in zip(PHASES, (0.01, 0.01, 1, 2, 0.1), strict=True):
            stream.launches(int(share * kernels))
            clock.mark(phase)
        clock.end_step()
    clock.stop()
    assert clock.sampled_steps == 10
    assert clock.behind == behind


def test_steps_last_as_long_as_the_gpu_is_at_work_on_them_however_far_the_host_is_ahead(
    monkeypatch,
):
    stream = Stream(launch=1e-6, kernel=10e-6)
    waits = on_streams({0: stream}, monkeypatch)
    clock = Clock(torch.device("cuda", 0), sample=0)
    stream.launches(500)  # of steps that are not timed
    clock.start()
    assert waits == []  # the queue is as long as in a long run
    stream.launches(2000)
    clock.stop()
    assert waits == [0]
    assert clock.seconds == pytest.approx(2000 * 10e-6)


def on_streams(streams: dict[int, Stream], monkeypatch) -> list[int]:
    """Have torch's GPUs be these streams; returns those that are waited for, as they are."""
    waits: list[int] = []
    monkeypatch.setattr(torch.cuda, "Event", streams[0].event)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda device: streams[device.index])
    monkeypatch.setattr(torch.cuda, "synchronize", waits.append)
    return waits


def test_of_several_gpus_all_are_waited_for_at_the_end_and_the_slowest_counts(monkeypatch):
    streams = {0: Stream(1e-6, 10e-6), 2: Stream(1e-6, 30e-6)}
    waits = on_streams(streams, monkeypatch)
    clock = Clock(CPU, sample=0, gpus=[0, 2])  # a network on the CPU and two GPUs
    clock.start()
    for each in streams.values():
        each.launches(100)
    clock.stop()
    assert waits == [0, 2]
    assert clock.seconds == pytest.approx(streams[2].ends[-1])
