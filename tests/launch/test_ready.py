"""How many processes one command has on a host: all that are alive at once count."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from benchmarks import ours
from ninefold import machine
from ninefold.errors import ConfigError
from ninefold.launch.ready import require_few_processes
from tests.launch.test_run import AGENT


@pytest.fixture
def one_core() -> Iterator[None]:
    machine.share_cores(1)
    yield
    machine.share_cores(None)


def test_the_readers_of_configurations_that_are_alive_at_once_are_counted_together(
    one_core: None,
) -> None:
    none, ddp, auto = (
        ours.job("device=cpu", f"parallel={parallel}", f"loader.workers={workers}")
        for parallel, workers in (("none", 64), ("ddp", 32), ("none", "auto"))
    )
    for jobs in ([none], [ddp], [none] + 9 * [auto]):
        require_few_processes(jobs)
    line = r"^error: loader\.workers=64,32: 3 process\(es\) of 2 configurations, .* have 128 "
    with pytest.raises(ConfigError, match=line):
        require_few_processes([none, ddp])


def test_nine_configurations_of_eight_processes_are_few_enough() -> None:
    require_few_processes(9 * [ours.job("device=cpu", "parallel=ddp", "parallel.processes=8")])


def test_the_readers_of_all_ranks_that_torchrun_started_on_a_host_are_counted_together(
    one_core: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in AGENT.items():
        monkeypatch.setenv(name, value)
    require_few_processes([ours.job("parallel=ddp", "loader.workers=32")])
    with pytest.raises(ConfigError, match=r"^error: loader\.workers=33: 2 process\(es\) have 66 "):
        require_few_processes([ours.job("parallel=ddp", "loader.workers=33")])
