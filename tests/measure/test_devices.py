"""What a run says of the machine it ran on: how fast it was, and what it used."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
import torch

from ninefold.engine.clock import Clock
from ninefold.engine.parallel import RankContext
from ninefold.engine.training import PeakMemory
from ninefold.measure import devices
from ninefold.measure.devices import (
    Load,
    Meter,
    Rapl,
    gpu_memory,
    meter,
)

CPU = torch.device("cpu")
ALONE = RankContext(0, 1, CPU)
MIB = 2**20
RANGE = 262_143_328_850  # microjoules, of a real counter


def powercap(root: Path, **domains: tuple[str, int]) -> Path:
    """A folder as Linux has it: name and microjoules of each domain, `_` for `:`."""
    for folder, (name, microjoules) in domains.items():
        path = root / f"intel-rapl:{folder[1:].replace('_', ':')}"
        path.mkdir(exist_ok=True)
        (path / "name").write_text(f"{name}\n")
        (path / "energy_uj").write_text(f"{microjoules}\n")
        (path / "max_energy_range_uj").write_text(f"{RANGE}\n")
    return root


def test_the_joules_of_a_cpu_are_those_of_its_packages_alone(tmp_path: Path) -> None:
    others = {"_0_0": ("core", 7), "_2": ("psys", 9)}
    rapl = Rapl(powercap(tmp_path, _0=("package-0", 5_000_000), _1=("package-1", 8), **others))
    assert rapl() == 0
    others = {"_0_0": ("core", 7_000_000), "_2": ("psys", 9_000_000)}
    powercap(tmp_path, _0=("package-0", 6_500_000), _1=("package-1", 2_000_008), **others)
    assert rapl() == pytest.approx(3.5)


def test_a_counter_that_starts_again_loses_nothing(tmp_path: Path) -> None:
    rapl = Rapl(powercap(tmp_path, _0=("package-0", RANGE - 1_000_000)))
    rapl()
    powercap(tmp_path, _0=("package-0", 500_000))
    assert rapl() == pytest.approx(1.5)
    assert rapl() == pytest.approx(1.5)


def test_energy_that_cannot_be_read_is_not_known(tmp_path: Path) -> None:
    assert meter(ALONE, tmp_path) == Meter()
    (powercap(tmp_path, _0=("package-0", 1)) / "intel-rapl:0" / "energy_uj").unlink()
    assert meter(ALONE, tmp_path).source is None
    clock = Clock(CPU, sample=0, meter=meter(ALONE, tmp_path))
    clock.start()
    clock.stop()
    assert math.isnan(clock.joules)


def test_one_process_of_a_host_counts_the_energy_of_its_cpu(tmp_path: Path) -> None:
    powercap(tmp_path, _0=("package-0", 1))
    first, second = (
        meter(RankContext(rank, 2, CPU, local_rank=rank, local_size=2), tmp_path) for rank in (0, 1)
    )
    powercap(tmp_path, _0=("package-0", 2_000_001))
    assert first.source == "rapl"
    assert (first.joules(), second.joules()) == (2, 0)


@pytest.mark.gpu
def test_the_driver_counts_at_least_what_the_allocator_holds_if_it_knows_the_process() -> None:
    held = torch.zeros(1 << 26, device="cuda")
    counted = gpu_memory(0)
    assert math.isnan(counted) or counted >= held.nbytes


def test_the_load_of_a_process_is_its_cpu_time_while_the_clock_runs(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
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


def test_the_clock_tells_the_load_when_it_runs() -> None:
    told: list[str] = []
    load = Load()
    load.begin = lambda: told.append("begin")  # type: ignore[method-assign]
    load.end = lambda: told.append("end")  # type: ignore[method-assign]
    clock = Clock(CPU, sample=0, told=[load])
    clock.start()
    with clock.paused():
        told.append("pause")
    clock.stop()
    assert told == ["begin", "end", "pause", "begin", "end"]


def test_the_load_of_gpus_is_what_the_driver_said_after_a_second_of_training(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
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


@pytest.mark.gpu
def test_what_an_evaluation_allocates_is_no_peak_of_the_training() -> None:
    memory = PeakMemory([0])
    torch.empty(64 * MIB, dtype=torch.uint8, device="cuda")
    memory.start()
    (before,) = memory.bytes()
    torch.empty(8 * MIB, dtype=torch.uint8, device="cuda")
    with memory.paused():
        torch.empty(32 * MIB, dtype=torch.uint8, device="cuda")
    torch.empty(4 * MIB, dtype=torch.uint8, device="cuda")
    assert memory.bytes() == [before + 8 * MIB]
