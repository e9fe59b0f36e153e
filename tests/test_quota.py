"""A container's quota of CPU time is the size of its machine, and others are who use it up."""

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from ninefold import machine
from ninefold.tournament import neighbors
from ninefold.tournament.neighbors import NeighborLoad


@pytest.fixture
def groups(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """A folder in place of /sys/fs/cgroup; `own` in it says which groups the process is in."""
    monkeypatch.setattr(machine, "GROUPS", tmp_path)
    monkeypatch.setattr(machine, "OWN_GROUPS", tmp_path / "own")
    return tmp_path


def write(folder: Path, files: dict[str, str]) -> None:
    for name, text in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text + "\n")


V1 = {"cpu.cfs_quota_us": "150000", "cpu.cfs_period_us": "100000"}


@pytest.mark.parametrize(
    ("files", "cpus"),
    [
        ({"own": "0::/", "cpu.max": "150000 100000"}, 1.5),
        ({"own": "0::/", "cpu.max": "max 100000"}, None),
        ({"own": "0::/", "cpu.max": "50000 100000"}, 0.5),
        ({"own": "0::/a/b", "a/cpu.max": "150000 100000", "a/b/cpu.max": "max 100000"}, 1.5),
        ({"own": "0::/a/b", "a/cpu.max": "150000 100000", "a/b/cpu.max": "10000 10000"}, 1.0),
        ({"own": "0::/../x", "cpu.max": "150000 100000"}, 1.5),
        ({"own": "3:memory:/a\n2:cpu,cpuacct:/a", **{f"cpu/a/{k}": v for k, v in V1.items()}}, 1.5),
        ({"own": "2:cpu:/of/the/host", **{f"cpu/{k}": v for k, v in V1.items()}}, 1.5),
        ({"own": "2:cpu:/", **{f"cpu/{k}": v for k, v in V1.items()}, "cpu/cpu.cfs_quota_us": "-1"},
         None),
        ({"own": "5:cpuset:/a", "cpuset/a/cpu.max": "150000 100000"}, None),
        ({}, None),
    ],
)  # fmt: skip
def test_the_tightest_quota_of_a_group_or_its_parents_counts(groups, files, cpus):
    write(groups, files)
    found = machine.quota()
    assert (found and found.cpus) == cpus
    whole = len(os.sched_getaffinity(0))
    assert machine.cores() == (whole if cpus is None else min(whole, max(int(cpus), 1)))


@pytest.mark.parametrize(
    ("own", "folder", "names"),
    [
        ("0::/a/b", "a", ("memory.max", "memory.current")),
        ("4:memory:/a", "memory/a", ("memory.limit_in_bytes", "memory.usage_in_bytes")),
    ],
)
def test_a_limit_of_memory_of_a_group_or_its_parents_counts(groups, own, folder, names):
    write(groups, {"own": own, f"{folder}/memory.stat": "inactive_file 5"})
    write(groups / folder, dict(zip(names, ("1000", "300"), strict=True)))
    assert machine.available_memory() == 705


def test_a_quota_of_more_than_the_host_has_is_the_host(groups):
    write(groups, {"own": "0::/", "cpu.max": "100000000 100000"})
    assert machine.cores() == len(os.sched_getaffinity(0))


@pytest.mark.parametrize("version", [1, 2])
@pytest.mark.parametrize(
    ("idle", "in_the_group", "low", "high"),
    [
        (9.0, 0.0, 0.0, 0.0),  # the host has CPUs left, whatever its others use
        (0.0, 0.0, 0.5, 1.0),  # the host has none left
        (9.0, 0.05, 0.001, 0.5),  # of the quota, half of a CPU, for 0.2 s or more
    ],
)
def test_under_a_quota_others_are_those_of_its_group_and_a_host_without_a_cpu_left(
    groups, monkeypatch, version, idle, in_the_group, low, high
):
    def used(seconds: float) -> dict[str, str]:
        if version == 1:
            return {"cpuacct/a/cpuacct.usage": f"{1e9 * seconds:.0f}"}
        return {"a/cpu.stat": f"usage_usec {1e6 * seconds:.0f}\nuser_usec 1"}

    def stat(seconds: float) -> dict[str, str]:
        ticks = f"{os.sysconf('SC_CLK_TCK') * seconds:.0f}"
        zeros = [f"cpu{cpu} 0 0 0 0 0" for cpu in sorted(os.sched_getaffinity(0))[1:]]
        first = min(os.sched_getaffinity(0))
        return {"stat": "\n".join([f"cpu{first} 0 0 0 {ticks} 0", *zeros])}

    monkeypatch.setattr(neighbors, "STAT", groups / "stat")
    quota = {1: {"own": "2:cpu:/a", "cpu/a/cpu.cfs_quota_us": "50000",
                 "cpu/a/cpu.cfs_period_us": "100000"},
             2: {"own": "0::/a", "a/cpu.max": "50000 100000"}}  # fmt: skip
    write(groups, quota[version] | used(7.0) | stat(100.0))
    load = NeighborLoad([])
    time.sleep(0.2)
    write(groups, used(7.0 + in_the_group) | stat(100.0 + idle))
    share = load.share([])
    assert share is not None
    assert low <= share <= high


def test_what_a_child_used_that_began_and_ended_meanwhile_is_our_own(groups, monkeypatch):
    monkeypatch.setattr(neighbors, "STAT", groups / "stat")
    cpus = sorted(os.sched_getaffinity(0))
    write(groups, {"stat": "\n".join(f"cpu{cpu} 0 0 0 0 0" for cpu in cpus)})  # never idle
    load, began = NeighborLoad([]), time.monotonic()
    busy = "import time\nwhile time.process_time() < 0.4: pass"
    subprocess.run([sys.executable, "-c", busy], check=True)
    whole = (time.monotonic() - began) * len(cpus)
    assert load.share([]) < 1 - 0.35 / whole
