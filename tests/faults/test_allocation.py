"""Set F: runs and studies whose processes are steps of the allocation that the command is in."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest

from tests.conftest import result, wait_until
from tests.faults.login import (
    QUICK,
    REQUEUE,
    SLOW,
    TWO,
    Login,
    equal,
    needed,
    own_lines,
    saved,
    train,
    typed,
)
from tests.faults.runs import RUN, last_step

pytestmark = needed


def test_engine_srun_without_an_allocation_is_one_line(login: Login) -> None:
    done = login.type(*train("launch.engine=srun", "hydra.run.dir=run"))
    assert done.returncode == 2
    assert done.stderr.startswith("error: launch.engine=srun: no allocation; SLURM_JOB_ID is unset")
    assert not (login.folder / "run").exists()


STUDY = [
    *("-m", *RUN, *QUICK, "parallel=none,ddp", "parallel.processes=auto", "seed=0"),
    *("launch.engine=srun", "study.retries=0"),
]


@pytest.mark.slow
def test_a_study_runs_in_one_allocation(login: Login, references: Path) -> None:
    job = login.sbatch("-N2 -n2", typed(*STUDY, "hydra.sweep.dir=study"))
    login.ended(job)
    none, ddp = sorted((login.folder / "study").glob("[0-9]*/"))
    assert [result(run)["processes"] for run in (none, ddp)] == [1, 2], login.said()
    assert equal(ddp, references)
    assert not list(login.folder.glob("study/*/.step-*"))


@pytest.mark.slow
def test_a_study_that_is_preempted_goes_on_in_its_next_allocation(
    login: Login, references: Path
) -> None:
    script = "\n".join(
        [
            "where=hydra.sweep.dir=study; [ -e study/sweep.json ] && where=study.resume=study",
            f"{typed(*STUDY)} $where",
            REQUEUE,
        ]
    )
    job = login.sbatch("--requeue -N2 -n2 --exclusive", script, env=SLOW)
    wait_until(lambda: any(map(saved, (login.folder / "study").glob("*ddp*/"))), said=login.said)
    login.ended(login.sbatch("-p high -N2 --exclusive", "sleep 1"))
    assert login.ended(job)["Restarts"] == "1"
    assert equal(next((login.folder / "study").glob("*ddp*/")), references)


@pytest.mark.slow
def test_ctrl_c_of_a_command_in_an_allocation_saves_the_step(login: Login) -> None:
    command = typed(*TWO, "epochs=1000", "launch.engine=srun", "hydra.run.dir=run")
    allocated = [
        "salloc",
        "-Q",
        "-N2",
        "-n2",
        "sh",
        "-c",
        f"echo $$ > pid; exec {command}",
    ]
    process = login.spawn(allocated, env=SLOW)
    wait_until(lambda: saved(login.folder / "run"), process=process)
    os.kill(int((login.folder / "pid").read_text()), signal.SIGINT)
    _, stderr = process.communicate(timeout=60)
    assert process.returncode == 130, stderr
    (line,) = own_lines(stderr)
    assert f"it is saved at step {last_step(login.folder / 'run')}" in line
