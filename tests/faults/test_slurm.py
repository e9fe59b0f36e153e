"""Set F: runs that Slurm starts, on one node or two: ranks, exit codes, several jobs at once."""

from __future__ import annotations

import shutil
import sys
import tempfile
from contextlib import suppress
from pathlib import Path

import pytest
from omegaconf import OmegaConf

from tests.conftest import ROOT, result, wait_until
from tests.faults.login import (
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
from tests.faults.runs import TARGETS, last_step
from tests.faults.slurm import cluster

pytestmark = needed


@pytest.mark.slow
def test_a_cluster_that_is_stopped_leaves_no_step_though_its_daemon_and_namespace_are_gone() -> (
    None
):
    folder = Path(tempfile.mkdtemp(prefix="nf-"))
    conf = f"SLURM_CONF={folder}/slurm.conf".encode()

    def of_a_step() -> list[bytes]:
        names = []
        for path in Path("/proc").glob("[0-9]*"):
            with suppress(OSError):
                if conf in (path / "environ").read_bytes():
                    names.append((path / "comm").read_bytes().strip())
        return [name for name in names if name in (b"slurmstepd", b"sleep")]

    try:
        with cluster(folder) as made:
            (folder / "job.sh").write_text("#!/bin/sh\nexec sleep 600\n")
            made.run("sbatch", "--chdir=/", "--output=/dev/null", str(folder / "job.sh"))
            wait_until(lambda: len(of_a_step()) == 2)
            made.kill_slurmd("nodea")
            made.lose("nodea")
        assert of_a_step() == []
    finally:
        shutil.rmtree(folder)


@pytest.mark.slow
def test_tasks_of_srun_on_two_nodes_are_the_ranks_of_one_run(login: Login) -> None:
    done = login.srun("-N2 -n2", *TWO, "max_steps=4", "hydra.run.dir=run")
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("  folder /") == 1
    assert result(login.folder / "run")["processes"] == 2
    assert (login.folder / "run" / "run.rank1.log").exists()


@pytest.mark.slow
def test_several_tasks_of_srun_for_a_strategy_of_one_process_are_one_line(login: Login) -> None:
    done = login.srun("-n2", "parallel=none", "hydra.run.dir=run")
    assert done.returncode == 2, done.stderr
    (line,) = own_lines(done.stderr)
    assert line.startswith("error: parallel.processes=1: srun started 2 processes")
    assert not (login.folder / "run").exists()


@pytest.mark.slow
def test_a_signal_to_a_step_saves_and_is_the_exit_code_of_srun(login: Login) -> None:
    process = login.spawn(
        ["srun", "-N2", "-n2", *train(*TWO, "epochs=1000", "hydra.run.dir=run")], env=SLOW
    )
    wait_until(lambda: saved(login.folder / "run"), process=process)
    login.cluster.run("scancel", "--signal=USR1", login.cluster.run("squeue", "-ho%A").strip())
    _, stderr = process.communicate(timeout=60)
    assert process.returncode == 75, stderr
    (line,) = own_lines(stderr)
    assert f"it is saved at step {last_step(login.folder / 'run')}" in line
    assert result(login.folder / "run")["exit_code"] == 75


TORCHRUN = (
    "srun sh -c '"
    f"{sys.executable} -m torch.distributed.run --nnodes 2 --node-rank $SLURM_NODEID "
    "--master-addr nodea --master-port 29511 --nproc-per-node 1 "
    f"{ROOT / 'train.py'} {' '.join(TWO)} hydra.run.dir=run'"
)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("options", "script"),
    [
        ("-N2 -n2", f"srun {typed(*TWO, 'hydra.run.dir=run')}"),
        ("-N1 -n2", f"srun {typed(*TWO, 'hydra.run.dir=run')}"),
        ("-N2 --ntasks-per-node=1", TORCHRUN),
    ],
    ids=["two nodes", "two tasks of a node", "torchrun on each of two nodes"],
)
def test_runs_are_bitwise_equal_however_slurm_starts_them(
    login: Login, references: Path, options: str, script: str
) -> None:
    login.ended(login.sbatch(options, script))
    assert equal(login.folder / "run", references)


@pytest.mark.slow
def test_nodes_may_have_different_numbers_of_tasks(login: Login) -> None:
    three = ["parallel.processes=auto", "batch_size=18", "dataset.train_count=108"]
    done = login.srun("-N2 -n3", *TWO, *three, "hydra.run.dir=run")
    assert done.returncode == 0, done.stderr
    assert result(login.folder / "run")["processes"] == 3


@pytest.mark.slow
def test_tasks_that_are_bound_and_dealt_to_the_nodes_in_turn_share_the_cpus_of_their_node(
    login: Login,
) -> None:
    # As srun starts them from a shell with a terminal, whose variables they inherit.
    four = typed(*TWO, "parallel.processes=auto", "threads=auto")
    bound = f"exec taskset -c $SLURM_LOCALID {four} hydra.run.dir=run"
    command = ["srun", "-N2", "-n4", "--ntasks-per-node=2", "-m", "cyclic", "sh", "-c", bound]
    done = login.type(*command, env={"SLURM_PTY_PORT": "1"})
    assert done.returncode == 0, done.stderr
    found = result(login.folder / "run")
    hosts = found["environment"]["hosts"]
    assert [(host["cores"], host["ranks"]) for host in hosts] == [(2, [0, 2]), (2, [1, 3])]
    assert OmegaConf.load(login.folder / "run" / "config.yaml").threads == 2


@pytest.mark.slow
def test_a_shell_of_salloc_is_one_command_which_starts_its_processes_itself(login: Login) -> None:
    done = login.type("salloc", "-Q", "-N2", "-n4", *train(*TWO, "hydra.run.dir=run"))
    assert done.returncode == 0, done.stderr
    assert result(login.folder / "run")["processes"] == 2
    assert done.stdout.count("  folder /") == 1


@pytest.mark.slow
@pytest.mark.parametrize(
    ("code", "overrides", "fault"),
    [
        (0, ["max_steps=2"], ""),
        (2, ["epohcs=3"], ""),
        (4, ["dataset.train_count=1"], ""),
        (6, [], "poison_nan@step:1:3"),
        (130, [], "int_rank1@step:1:3"),
        (75, [], "term_rank0@step:0:3"),
    ],
)
def test_exit_codes_come_to_srun_unchanged(
    login: Login, code: int, overrides: list[str], fault: str
) -> None:
    env = {"FAULT": fault, "FAULT_MARK": str(login.folder / "mark")} if fault else {}
    words = [*TWO, "hydra.run.dir=run", *overrides]
    done = login.srun("-N2 -n2 --kill-on-bad-exit=0", *words, env=env)
    assert done.returncode == code, done.stderr
    assert len(own_lines(done.stderr)) == (code != 0), done.stderr


@pytest.mark.slow
def test_a_run_without_a_checkpoint_that_verifies_ends_srun_with_3(login: Login) -> None:
    nodes = "-N2 -n2 --kill-on-bad-exit=0"
    begun = login.srun(nodes, *TWO, "max_steps=2", "hydra.run.dir=run")
    assert begun.returncode == 0, begun.stderr
    for path in (login.folder / "run" / "checkpoints").glob("*.pt"):
        path.write_bytes(path.read_bytes()[:1000])
    done = login.srun(nodes, "resume=run", *TARGETS, "max_steps=4")
    assert done.returncode == 3, done.stderr
    (line,) = own_lines(done.stderr)
    assert str(login.folder / "run") in line
    assert result(login.folder / "run")["steps"] == 2  # of the run that it could not go on with


@pytest.mark.slow
def test_a_task_that_never_comes_ends_the_others_with_7(login: Login) -> None:
    one = f"[ $SLURM_PROCID = 1 ] || exec {typed(*TWO, 'hydra.run.dir=run')}"
    done = login.type("srun", "-N2", "-n2", "sh", "-c", one)
    assert done.returncode == 7, done.stderr
    assert len(own_lines(done.stderr)) == 1


@pytest.mark.slow
def test_the_jobs_of_an_array_are_runs_of_their_own(login: Login) -> None:
    words = [*TWO, "max_steps=4"]
    run = "seed=$SLURM_ARRAY_TASK_ID hydra.run.dir=run$SLURM_ARRAY_TASK_ID"
    job = login.sbatch("--array=0-2 -N2 -n2", f"srun {typed(*words)} {run}")
    wait_until(lambda: not login.cluster.running(), said=login.said)
    assert job
    seeds = [result(login.folder / f"run{number}")["seed"] for number in range(3)]
    assert seeds == [0, 1, 2], login.said()


@pytest.mark.slow
def test_jobs_at_the_same_time_have_stores_of_their_own(login: Login) -> None:
    words = [*TWO, "max_steps=4"]
    runs = [
        login.sbatch("-N2 -n2", f"srun {typed(*words, f'seed={n}', f'hydra.run.dir=run{n}')}")
        for n in (0, 1)
    ]
    for job in runs:
        login.ended(job)
    assert [result(login.folder / f"run{n}")["seed"] for n in (0, 1)] == [0, 1]
