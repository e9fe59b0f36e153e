"""A study of nine cells that is killed at random moments and resumed ends the same."""

import json
import random
import subprocess
import time

import pytest

from tests.conftest import ROOT, Shell, result, wait_until
from tests.faults.runs import RUN, state_hash

KILLS = 3
STUDY = [
    "-m", *RUN, "parallel=none,dp,ddp", "amp=fp32,autocast,scaler", "seed=0", "threads=2",
    "launch.cpu_processes=2", "study.ask=[score]",
]  # fmt: skip


def begun(shell: Shell, where: str) -> subprocess.Popen[str]:
    command = (str(ROOT / "train.py"), *STUDY, where)
    return shell.start(*command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)


@pytest.mark.slow
def test_a_study_killed_three_times_at_random_moments_equals_one_that_was_not(shell):
    began = time.monotonic()
    assert begun(shell, "hydra.sweep.dir=whole").wait(timeout=900) == 0
    each = (time.monotonic() - began) / (KILLS + 1)
    chance, where = random.Random(0), "hydra.sweep.dir=cut"
    for _ in range(KILLS):
        process = begun(shell, where)
        wait_until((shell.folder / "cut" / "sweep.json").exists, process)
        time.sleep(chance.uniform(0.2, 1.2) * each)
        shell.kill(process)
        where = "study.resume=cut"
    assert begun(shell, where).wait(timeout=900) == 0
    whole, cut = (sorted((shell.folder / name).glob("[0-9]*")) for name in ("whole", "cut"))
    assert [run.name for run in cut] == [run.name for run in whole]
    for one, other in zip(whole, cut, strict=True):
        assert state_hash(one) == state_hash(other), one.name
        assert result(one)["score"] == result(other)["score"]
    rounds = json.loads((shell.folder / "cut" / "sweep.json").read_text())["rounds"]
    assert [len(entry["runs"]) for entry in rounds] == [9]
