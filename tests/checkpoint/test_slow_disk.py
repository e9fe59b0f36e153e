"""On a disk that is slower than training, checkpoints are left out, and nothing else changes."""

import re

import pytest

from tests.faults.runs import job, last_step, one_after_another, state_hash

SLOW = "task._target_=tests.checkpoint.slow.Task"


@pytest.mark.slow
@pytest.mark.parametrize("strategy", ["ddp2", "none"])
def test_all_processes_leave_out_the_same_checkpoints(shell, strategy):
    """If they did not, one would gather the state of another that trains."""
    options = [*job(strategy, "fp32"), "launch.timeout=20"]
    slow, whole = one_after_another(
        shell,
        ["train.py", *job(strategy, "fp32", SLOW), "launch.timeout=20", "hydra.run.dir=slow"],
        ["train.py", *options, "hydra.run.dir=whole"],
    )
    assert slow.returncode == whole.returncode == 0, slow.stderr
    said = r"checkpoints left out, as the one before was still being written: (\d+)"
    found = re.search(said, slow.stdout)
    assert 0 < int(found[1]) < 9
    assert re.search(said, whole.stdout) is None  # there each step waits for the write
    assert last_step(shell.folder / "slow") == 18
    assert state_hash(shell.folder / "slow") == state_hash(shell.folder / "whole")
