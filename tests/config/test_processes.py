"""How many processes a run has: parts of a batch and copies of the parameters are equal."""

import pytest

from benchmarks import ours
from ninefold.config.processes import require_division
from ninefold.errors import ConfigError


@pytest.mark.parametrize(
    ("batch_size", "processes", "accumulate", "advice"),
    [
        (64, 1, 1, None),
        (64, 4, 1, None),
        (6, 4, 1, "choose 4 or 8"),
        (65, 2, 1, "choose 64 or 66"),
        (2, 4, 1, "choose 4"),
        (1, 3, 1, "choose 3"),
        (64, 3, 4, "choose 60 or 72"),
    ],
)
def test_a_batch_that_does_not_divide_is_told_the_nearest_that_do(
    batch_size, processes, accumulate, advice
):
    if advice is None:
        require_division(batch_size, processes, accumulate)
        return
    with pytest.raises(ConfigError) as raised:
        require_division(batch_size, processes, accumulate)
    said = str(raised.value)
    assert said.startswith(f"error: batch_size={batch_size}: does not divide by {processes} proc")
    assert said.endswith(f"; {advice}")


def test_on_a_cpu_ddp_has_two_processes_unless_it_is_told_otherwise():
    job = ("parallel=ddp", "device=cpu")
    assert ours.job(*job).processes == 2
    assert ours.job(*job, "launch.cpu_processes=1").processes == 1
    with pytest.raises(ConfigError, match="batch_size=63: does not divide by 2 processes"):
        ours.job(*job, "batch_size=63")
    with pytest.raises(ConfigError, match="batch_size=6: 2 processes with 3 examples each"):
        ours.job(*job, "batch_size=6", "augment.mixup=1")  # which mixes pairs
