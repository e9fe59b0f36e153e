"""How many processes one command has on a host: all that are alive at once count."""

from collections.abc import Iterator

import pytest

from benchmarks import ours
from ninefold import machine
from ninefold.errors import ConfigError, ResourceError
from ninefold.launch.ready import require_few_processes
from tests.launch.test_run import AGENT


@pytest.fixture
def one_core() -> Iterator[None]:
    machine.share_cores(1)
    yield
    machine.share_cores(None)


def test_configurations_are_alive_together_as_far_as_their_processes_and_readers_allow(one_core):
    readers, auto, ranks = (
        ours.job("device=cpu", *words)
        for words in (
            ["loader.workers=64"],
            ["loader.workers=auto"],
            ["parallel=ddp", "parallel.processes=8", "batch_size=8"],
        )
    )
    for jobs in ([readers], 4 * [readers] + 9 * [auto], 9 * [ranks]):
        require_few_processes(jobs)
    with pytest.raises(ResourceError, match=r"^error: loader\.workers=64: .* 320 together; 256"):
        require_few_processes(5 * [readers])
    with pytest.raises(ResourceError, match=r"^error: parallel\.processes=264: too many for one"):
        require_few_processes(33 * [ranks])


def test_the_readers_of_all_ranks_of_torchrun_on_a_host_count_together(one_core, monkeypatch):
    for name, value in AGENT.items():
        monkeypatch.setenv(name, value)
    require_few_processes([ours.job("parallel=ddp", "loader.workers=32")])
    with pytest.raises(ConfigError, match=r"^error: loader\.workers=33: 2 processes with 66 "):
        require_few_processes([ours.job("parallel=ddp", "loader.workers=33")])
