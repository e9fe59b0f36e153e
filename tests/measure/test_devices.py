"""What a run says of the machine it ran on: how fast it was, and what it used."""

import math
import os
import subprocess
import sys
from types import SimpleNamespace

import pytest
import torch

from ninefold.engine.clock import Clock
from ninefold.engine.training import PeakMemory
from ninefold.measure import devices
from ninefold.measure.devices import Load
from ninefold.result import ON_GPU
from ninefold.tournament import neighbors

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


@pytest.fixture
def driver(monkeypatch):
    """NVIDIA's, of one GPU. computed: percent by process. reasons: for lower clocks."""

    def utilization(gpu: int, since: int) -> list[SimpleNamespace]:
        assert since == 5_000_000  # microseconds
        return [SimpleNamespace(pid=pid, smUtil=used) for pid, used in found.computed.items()]

    found = SimpleNamespace(
        computed={},
        reasons=0x1,
        NVMLError=ValueError,
        nvmlInit=lambda: None,
        nvmlDeviceGetCount=lambda: 1,
        nvmlDeviceGetHandleByIndex=lambda index: index,
        nvmlDeviceGetProcessUtilization=utilization,
        nvmlDeviceGetCurrentClocksEventReasons=lambda gpu: found.reasons,
    )
    monkeypatch.setitem(sys.modules, "pynvml", found)
    monkeypatch.setattr(neighbors, "gpu_driver", lambda: True)
    monkeypatch.setattr(devices, "_uuid", str)
    monkeypatch.setattr(neighbors, "nvml_of", lambda uuid: (found, uuid))
    return found


def test_a_strangers_program_that_computed_on_the_gpu_is_told(driver, monkeypatch):
    stranger = subprocess.Popen(["sleep", "60"])
    try:
        driver.computed = {os.getpid(): 60, stranger.pid: 0}  # it is only there
        assert devices.disturbances([0], 5.0) == []
        driver.computed[stranger.pid] = 30
        assert devices.disturbances([0], 5.0) == [devices.OTHERS]
        assert devices.disturbances([], 5.0) == []
        monkeypatch.setattr(os, "getppid", os.getpid)  # another cell's process is no stranger
        assert devices.disturbances([0], 5.0) == []
    finally:
        stranger.kill()
        stranger.wait()
    driver.computed = {stranger.pid: 60}  # numbers of another container: who is ours is not known
    assert devices.disturbances([0], 5.0) == []


def test_a_gpu_at_its_power_limit_is_not_called_hot(driver):
    driver.reasons = 0x4
    (power,) = devices.disturbances([0, 0], 5.0)
    driver.reasons = 0x20
    (heat,) = devices.disturbances([0], 5.0)
    assert ("power limit" in power, "heat" in heat) == (True, True)
    assert power.startswith(ON_GPU)


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
