"""What a host allows a run is looked at before its processes are started."""

from __future__ import annotations

import os
import resource
from collections.abc import Iterator
from pathlib import Path

import pytest

from ninefold.launch import limits


@pytest.fixture
def few_files() -> Iterator[None]:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (256, hard))
    yield
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def test_more_processes_than_one_command_can_start_are_refused() -> None:
    assert limits.problems(limits.MAX_PROCESSES) == []
    (failure,) = limits.problems(limits.MAX_PROCESSES + 1)
    assert (failure.code, failure.field) == (2, "parallel.processes")


@pytest.mark.usefixtures("few_files")
def test_too_few_open_files_for_the_launcher_are_refused() -> None:
    assert limits.problems(4) == []
    (failure,) = limits.problems(100)
    assert failure.code == 5
    assert failure.cause == "RLIMIT_NOFILE=256: too few files are allowed here"


def test_a_cgroup_that_holds_as_many_processes_as_it_may_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "pids.max").write_text("20\n")
    (tmp_path / "pids.current").write_text("12\n")
    monkeypatch.setattr(limits, "_cgroups", lambda: iter([tmp_path]))
    assert limits.problems(1) == []
    (failure,) = limits.problems(4)
    assert failure.code == 5
    assert failure.value == str(tmp_path / "pids.max")
    (tmp_path / "pids.max").write_text("max\n")
    assert limits.problems(4) == []


def test_this_process_is_in_a_cgroup_whose_limit_is_found() -> None:
    folders = list(limits._cgroups())
    listed = [line.split(":", 2)[1:] for line in Path("/proc/self/cgroup").read_text().splitlines()]
    assert folders or not any(not kinds or "pids" in kinds for kinds, _ in listed)
    assert all(str(folder).startswith("/sys/fs/cgroup") for folder in folders)
    assert os.path.isdir("/sys/fs/cgroup") or not folders
