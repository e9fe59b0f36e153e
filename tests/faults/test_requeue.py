"""Set F: jobs of Slurm that are signaled, preempted, requeued, cancelled, or lose a daemon."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.conftest import result, wait_until
from tests.faults.login import REQUEUE, SLOW, TWO, Login, equal, needed, saved, typed
from tests.faults.runs import last_step

pytestmark = needed


def begun(login: Login, options: str = "-N2 -n2", *more: str) -> str:
    """A job of a run of two tasks that requeues itself; returns its number once it has saved."""
    script = f"srun --kill-on-bad-exit=0 {typed(*TWO, *more, 'hydra.run.dir=run')}\n{REQUEUE}"
    job = login.sbatch(f"--requeue {options}", script, env=SLOW)
    wait_until(lambda: saved(login.folder / "run"), said=login.said)
    return job


def assert_saved(run: Path) -> None:
    """It has been told to stop, and its newest checkpoint is of the step that it stopped at."""
    assert result(run)["exit_code"] == 75
    assert f"it is saved at step {last_step(run)}" in result(run)["error"]


@pytest.mark.slow
def test_a_signal_to_the_steps_saves_and_the_requeued_job_goes_on_to_the_same_end(
    login: Login, references: Path
) -> None:
    job = begun(login)
    login.cluster.run("scancel", "--signal=USR1", job)
    assert login.ended(job)["Restarts"] == "1"
    assert "resuming run" in login.said()
    assert equal(login.folder / "run", references)


@pytest.mark.slow
def test_the_recipe_for_one_node_saves_at_a_signal_to_the_batch_script(
    login: Login, references: Path
) -> None:
    script = "\n".join(
        [
            f"{typed(*TWO, 'hydra.run.dir=run')} &",
            "trap 'kill -USR1 $!' USR1 TERM",
            "wait $!; code=$?",
            "while kill -0 $! 2>/dev/null; do wait $!; code=$?; done",
            "[ $code = 75 ] && scontrol requeue $SLURM_JOB_ID",
            "exit $code",
        ]
    )
    job = login.sbatch("--requeue -N1 -n2", script, env=SLOW)
    wait_until(lambda: saved(login.folder / "run"), said=login.said)
    login.cluster.run("scancel", "--batch", "--signal=USR1", job)
    assert login.ended(job)["Restarts"] == "1"
    assert equal(login.folder / "run", references)


@pytest.mark.slow
def test_a_preempted_job_saves_waits_and_goes_on(login: Login, references: Path) -> None:
    job = begun(login, "-N2 -n2 --exclusive")
    urgent = login.sbatch("-p high -N2 --exclusive", "sleep 3")
    login.ended(urgent)
    assert login.ended(job)["Restarts"] == "1"
    assert equal(login.folder / "run", references)


@pytest.mark.slow
def test_a_job_at_its_time_limit_has_saved(login: Login) -> None:
    job = begun(login, "-N2 -n2 --time=1", "epochs=1000")
    login.ended(job, "TIMEOUT")
    assert_saved(login.folder / "run")


@pytest.mark.slow
def test_a_cancelled_job_has_saved_and_is_not_requeued(login: Login) -> None:
    job = begun(login, "-N2 -n2", "epochs=1000")
    login.cluster.run("scancel", job)
    assert login.ended(job, "CANCELLED")["Restarts"] == "0"
    wait_until(lambda: not login.processes())
    assert_saved(login.folder / "run")


@pytest.mark.slow
def test_a_job_that_an_administrator_requeues_goes_on(login: Login, references: Path) -> None:
    job = begun(login)
    login.cluster.run("scontrol", "requeue", job)
    assert login.ended(job)["Restarts"] == "1"
    assert equal(login.folder / "run", references)


@pytest.mark.slow
def test_a_job_that_is_requeued_while_it_saves_goes_on(login: Login, references: Path) -> None:
    # Rank 0 stops amid a save; Slurm lets stopped processes go on before it tells them to end.
    amid = "[ -e mark ] || export FAULT=freeze_rank0@write:0:10 FAULT_MARK=$PWD/mark"
    run = f"srun --kill-on-bad-exit=0 {typed(*TWO, 'hydra.run.dir=run')}"
    job = login.sbatch("--requeue -N2 -n2", f"{amid}\n{run}\n{REQUEUE}", env=SLOW)
    wait_until((login.folder / "mark").exists, said=login.said)
    login.cluster.run("scontrol", "requeue", job)
    assert login.ended(job)["Restarts"] == "1"
    assert "resuming run" in login.said()
    assert equal(login.folder / "run", references)


@pytest.mark.slow
def test_a_node_whose_slurmd_was_killed_finishes_the_run(login: Login, references: Path) -> None:
    job = begun(login)
    login.cluster.kill_slurmd("nodeb")
    try:
        wait_until((login.folder / "run" / "result.json").exists, said=login.said)
    finally:
        login.cluster.start_slurmd("nodeb")
    login.ended(job)
    assert equal(login.folder / "run", references)
