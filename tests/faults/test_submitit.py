"""Set F: sweeps whose runs are jobs of Slurm, through submitit."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.conftest import result, wait_until
from tests.faults.login import QUICK, SLOW, Login, equal, needed, saved, train
from tests.faults.runs import RUN

pytestmark = needed


SUBMITIT = [
    "-m",
    *RUN,
    *QUICK,
    "hydra/launcher=submitit_slurm",
    "hydra.launcher.timeout_min=40",
    "hydra.sweep.dir=sweep",
]
TASKS = ["hydra.launcher.nodes=2", "parallel=ddp", "parallel.processes=2"]
CELLS = ["amp=fp32,autocast"]  # jobs at the same time; those of another seed come after them


def runs_of(login: Login) -> list[Path]:
    return sorted((login.folder / "sweep").glob("[0-9]*/"))


def jobs_of(login: Login) -> list[str]:
    return login.cluster.run("squeue", "--noheader", "--array", "--format=%i").split()


@pytest.mark.slow
def test_submitit_runs_a_sweep(login: Login) -> None:
    cells = ["parallel=none,dp,ddp", "amp=fp32,autocast", "max_steps=4"]
    done = login.type(*train(*SUBMITIT, *cells, "hydra.launcher.array_parallelism=2"))
    assert done.returncode == 0, done.stderr
    assert [result(run)["status"] for run in runs_of(login)] == ["ok"] * 6
    assert (login.folder / "sweep" / "report" / "report.md").exists()


@pytest.mark.slow
def test_the_tasks_of_a_job_of_submitit_are_one_run(login: Login, references: Path) -> None:
    done = login.type(*train(*SUBMITIT, *TASKS, "seed=0,1"))
    assert done.returncode == 0, done.stderr
    assert [result(run)["processes"] for run in runs_of(login)] == [2, 2]
    assert equal(runs_of(login)[0], references)


@pytest.mark.slow
def test_a_job_that_submitit_requeues_goes_on(login: Login, references: Path) -> None:
    process = login.spawn(train(*SUBMITIT, *TASKS, "seed=0"), env=SLOW)
    wait_until(lambda: runs_of(login) and saved(runs_of(login)[0]), process=process)
    (job,) = jobs_of(login)
    login.cluster.run("scancel", "--signal=USR2", job)
    login.cluster.wait(job, "COMPLETED", "FAILED")
    _, stderr = process.communicate(timeout=240)
    assert process.returncode == 0, stderr
    assert login.cluster.state(job)["Restarts"] == "1"
    assert equal(runs_of(login)[0], references)


@pytest.mark.slow
def test_a_cancelled_job_of_submitit_does_not_end_the_others(login: Login) -> None:
    process = login.spawn(train(*SUBMITIT, *TASKS, *CELLS), env=SLOW)
    wait_until(lambda: list(map(saved, runs_of(login))) == [True, True], process)
    login.cluster.run("scancel", jobs_of(login)[0])
    _, stderr = process.communicate(timeout=240)
    assert process.returncode != 0, stderr
    wait_until(lambda: not login.cluster.running())
    assert sorted(result(run)["exit_code"] for run in runs_of(login)) == [0, 75]
