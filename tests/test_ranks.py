"""Which process of a run this is, and environments that are refused."""

from __future__ import annotations

import pytest

from ninefold.ranks import Ranks, found, problems
from tests.conftest import ROOT, Shell

SRUN = {"SLURM_JOB_ID": "7", "SLURM_STEP_ID": "0", "SLURM_PROCID": "3", "SLURM_NTASKS": "4"}
TORCHRUN = {
    "TORCHELASTIC_RUN_ID": "x",
    "WORLD_SIZE": "4",
    "LOCAL_WORLD_SIZE": "2",
    "RANK": "3",
    "LOCAL_RANK": "1",
    "MASTER_ADDR": "node0",
    "MASTER_PORT": "29500",
}


def test_a_process_that_no_launcher_started_is_alone() -> None:
    assert found({}) == Ranks(0, 1, 0, 1, attempt=0, launched=False)
    assert found(TORCHRUN) == Ranks(
        3, 4, 1, 2, launched=True, run="x", address="node0", ports=(29500,), serves=True
    )
    assert not found({**TORCHRUN, "TORCHELASTIC_USE_AGENT_STORE": "True"}).serves


@pytest.mark.parametrize(
    "environment",
    [
        {},
        {**SRUN, "SLURM_NTASKS": "1"},
        {**SRUN, "SLURM_STEP_NUM_TASKS": "1"},
        {"SLURM_JOB_ID": "7", "SLURM_PROCID": "0", "SLURM_NTASKS": "4"},
        {**SRUN, "SLURM_STEP_ID": str(2**32 - 5)},
        {**SRUN, **TORCHRUN},
    ],
    ids=[
        "no Slurm",
        "a step of one task",
        "a step of one task in a larger job",
        "sbatch or salloc without srun",
        "the batch script as a step",
        "torchrun inside srun",
    ],
)
def test_environments_of_slurm_in_which_one_run_is_started_are_fine(
    environment: dict[str, str],
) -> None:
    assert problems(environment) == []


def test_several_tasks_of_srun_are_refused_as_each_would_train_a_run_of_its_own(
    shell: Shell,
) -> None:
    for task in ("0", "3"):
        env = {**SRUN, "SLURM_PROCID": task}
        done = shell.run(str(ROOT / "train.py"), "parallel=ddp", "epochs=1", env=env)
        assert done.returncode == 2
        assert done.stderr.startswith("error: SLURM_NTASKS=4: srun started 4 tasks, and each ")
        assert done.stderr.count("\n") == 1
    assert not (shell.folder / "outputs").exists()
