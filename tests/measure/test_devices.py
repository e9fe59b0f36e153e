"""What a run says of the machine it ran on: how fast it was, and what it used."""

import math
import os
import subprocess
from types import SimpleNamespace

import pytest
import torch

from ninefold.engine.clock import Clock
from ninefold.engine.training import PeakMemory
from ninefold.measure import devices
from ninefold.measure.devices import Load
from ninefold.result import ON_GPU

CPU = torch.device("cpu")
MIB = 2**20


def test_the_load_of_a_process_is_its_cpu_time_while_the_clock_runs(monkeypatch):
    now, used = iter([0.0, 0.5, 7.0, 9.0]), iter([1.0, 1.5, 4.0, 6.5])  # begin, end, begin, end
    monkeypatch.setattr("time.perf_counter", lambda: next(now))
    monkeypatch.setattr("time.process_time", lambda: next(used))
    load = Load()
    load.begin()
    load.end()
    assert math.isnan(load.cpu)  # half a second is too short to tell
    load.begin()
    load.end()
    assert load.cpu == pytest.approx(3.0 / 2.5)


def test_the_clock_tells_the_load_when_it_runs():
    told: list[str] = []
    load = Load()
    load.begin = lambda: told.append("begin")
    load.end = lambda: told.append("end")
    clock = Clock(CPU, sample=0, observers=[load])
    clock.start()
    with clock.paused():
        told.append("pause")
    clock.stop()
    assert told == ["begin", "end", "pause", "begin", "end"]


def test_the_load_of_gpus_is_what_the_driver_said_after_a_second_of_training(monkeypatch):
    said = iter([90.0, 50.0, 80.0, 40.0])
    monkeypatch.setattr(devices, "gpu_load", lambda index: next(said))
    now = iter([0.0, 0.9, 0.91, 1.5, 9.0, 9.5, 9.51, 10.1])  # begin, end, begin, ...
    monkeypatch.setattr("time.perf_counter", lambda: next(now))
    load = Load([0, 1])
    for _ in range(4):
        load.begin()
        load.end()
    assert load.gpus == pytest.approx([0.85, 0.45])  # at 1.5 and 10.1: 9.0 comes after a break
    assert all(map(math.isnan, Load([0]).gpus))


def test_other_programs_on_a_gpu_and_clocks_that_are_held_down_are_told(monkeypatch):
    others = subprocess.Popen(["sleep", "60"], start_new_session=True)
    pids, reasons = [os.getpid()], [0x1]
    nvml = SimpleNamespace(
        nvmlDeviceGetComputeRunningProcesses=lambda gpu: [SimpleNamespace(pid=p) for p in pids],
        nvmlDeviceGetCurrentClocksEventReasons=lambda gpu: reasons[0],
    )
    monkeypatch.setattr(devices, "_gpu", lambda index: (nvml, index))
    try:
        assert devices.disturbances([0]) == []  # of this session, and an idle GPU
        pids.append(others.pid)
        assert devices.disturbances([0]) == [f"{ON_GPU}other programs were there."]
        reasons[0] = 0x4 | 0x20
        assert len(devices.disturbances([0, 1])) == 2
        assert devices.disturbances([]) == []
    finally:
        others.kill()
        others.wait()
    assert len(devices.disturbances([0])) == 1  # what is no process here is nobody's


@pytest.mark.gpu
def test_what_an_evaluation_allocates_is_no_peak_of_the_training():
    memory = PeakMemory([0])
    torch.empty(64 * MIB, dtype=torch.uint8, device="cuda")
    memory.start()
    (before,) = memory.bytes()
    torch.empty(8 * MIB, dtype=torch.uint8, device="cuda")
    with memory.paused():
        torch.empty(32 * MIB, dtype=torch.uint8, device="cuda")
    torch.empty(4 * MIB, dtype=torch.uint8, device="cuda")
    assert memory.bytes() == [before + 8 * MIB]
