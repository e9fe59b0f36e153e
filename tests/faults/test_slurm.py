"""Set F: runs and studies on a Slurm of two nodes, whose jobs are signaled, requeued and lost."""

from __future__ import annotations

import os
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import ROOT, Shell, result
from tests.faults.runs import RUN, last_step, reference, state_hash
from tests.faults.slurm import Cluster, cluster, missing

pytestmark = pytest.mark.skipif(bool(missing()), reason=f"it lacks {', '.join(missing())}")

TRAIN = [sys.executable, str(ROOT / "train.py")]
QUICK = ["threads=1", "clock.probe=0", "study.burn_in=0"]
TWO = [*RUN, *QUICK[:2], "parallel=ddp", "parallel.processes=2"]
SLOW = {"SLOW": "0.4"}  # a run of 18 steps takes 7 seconds and more
# What a batch script does when it is told to make room: see docs/clusters.md.
REQUEUE = "code=$?; [ $code = 75 ] && scontrol requeue $SLURM_JOB_ID; exit $code"


@dataclass
class Login(Shell):
    """A shell on nodea, on which the commands of Slurm are typed."""

    cluster: Cluster = field(kw_only=True)

    def spawn(self, command: Any, **options: Any) -> subprocess.Popen[str]:
        path = os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])
        env = {**self.cluster.environment(), "PYTHONPATH": path, **options.pop("env", {})}
        typed = self.cluster.on("nodea", *command, folder=self.folder)
        return super().spawn(typed, env=env, **options)

    def type(self, *command: str, **options: Any) -> subprocess.CompletedProcess[str]:
        process = self.spawn(command, **options)
        stdout, stderr = process.communicate(timeout=400)
        return subprocess.CompletedProcess(command, process.returncode, stdout, stderr)

    def srun(
        self, nodes: str, *overrides: str, env: Mapping[str, str] | None = None
    ) -> subprocess.CompletedProcess[str]:
        return self.type("srun", *nodes.split(), *train(*overrides), env=env or {})

    def sbatch(self, options: str, script: str, env: Mapping[str, str] | None = None) -> str:
        """Hand in a batch script; returns the job's number."""
        (self.folder / "job.sh").write_text(f"#!/bin/bash\n{script}\n")
        words = ["--parsable", "--output=job-%A_%a.log", "--open-mode=append", *options.split()]
        done = self.type("sbatch", *words, "job.sh", env=env or {})
        assert done.returncode == 0, done.stderr
        return done.stdout.strip()

    def ended(self, job: str, *states: str) -> Mapping[str, str]:
        """What scontrol shows of a job that has ended in one of `states`: COMPLETED by default."""
        states = states or ("COMPLETED",)
        over = ("COMPLETED", "FAILED", "CANCELLED", "TIMEOUT", "NODE_FAIL", "PREEMPTED")
        found = self.cluster.wait(job, *over)
        assert found["JobState"] in states, (found, self.said())
        return found

    def said(self) -> str:
        """What the batch scripts printed."""
        return "\n".join(path.read_text()[-3000:] for path in self.folder.glob("job-*.log"))


@pytest.fixture(autouse=True)
def of_set_f(record_property: Callable[[str, str], None]) -> None:
    record_property("set", "F")


@pytest.fixture(scope="module")
def nodes() -> Iterator[Cluster]:
    folder = Path(tempfile.mkdtemp(prefix="nf-"))
    try:
        with cluster(folder) as made:
            yield made
    finally:
        shutil.rmtree(folder)


@pytest.fixture
def login(tmp_path: Path, nodes: Cluster) -> Iterator[Login]:
    """A shell on nodea; the test fails if it leaves a job or a process behind."""
    shell = Login(tmp_path, cluster=nodes)
    yield shell
    left = [] if nodes.running() else shell.survivors()
    nodes.clear()
    for pid in shell.survivors():  # of a job that the test did not wait for
        os.kill(pid, signal.SIGKILL)
    assert not left, f"processes left behind: {left}"


def train(*overrides: str) -> list[str]:
    """The command with `overrides`, of which the last of a key holds."""
    return [*TRAIN, *{override.partition("=")[0]: override for override in overrides}.values()]


def typed(*overrides: str) -> str:
    return shlex.join(train(*overrides))


def until(
    there: Callable[[], object],
    what: Callable[[], str] = str,
    process: subprocess.Popen[str] | None = None,
    seconds: float = 240,
) -> None:
    """Wait for it. process: whose end before that is an error. what: has been printed till then."""
    deadline = time.monotonic() + seconds
    while not there():
        assert process is None or process.poll() is None, process.communicate()
        assert time.monotonic() < deadline, what()
        time.sleep(0.05)


def saved(run: Path) -> bool:
    return (run / "checkpoints" / "manifest.json").exists()


def own_lines(stderr: str) -> list[str]:
    return [line for line in stderr.splitlines() if line.startswith("error: ")]


def equal(run: Path, references: Path, options: list[str] = TWO) -> bool:
    return state_hash(run) == state_hash(reference(references, options))


# How runs are started


def test_tasks_of_srun_on_two_nodes_are_the_ranks_of_one_run(login: Login) -> None:
    done = login.srun("-N2 -n2", *TWO, "max_steps=4", "hydra.run.dir=run")
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("  folder /") == 1
    assert result(login.folder / "run")["processes"] == 2
    assert (login.folder / "run" / "run.rank1.log").exists()


def test_several_tasks_of_srun_for_a_strategy_of_one_process_are_one_line(login: Login) -> None:
    done = login.srun("-n2", "parallel=none", "hydra.run.dir=run")
    assert done.returncode == 2, done.stderr
    (line,) = own_lines(done.stderr)
    assert line.startswith("error: SLURM_NTASKS=2: srun started 2 tasks, parallel=none runs in one")
    assert not (login.folder / "run").exists()


def test_a_signal_to_a_step_saves_and_is_the_exit_code_of_srun(login: Login) -> None:
    process = login.spawn(
        ["srun", "-N2", "-n2", *train(*TWO, "epochs=1000", "hydra.run.dir=run")], env=SLOW
    )
    until(lambda: saved(login.folder / "run"), process=process)
    login.cluster.run("scancel", "--signal=USR1", login.cluster.run("squeue", "-ho%A").strip())
    _, stderr = process.communicate(timeout=60)
    assert process.returncode == 75, stderr
    (line,) = own_lines(stderr)
    assert f"it is saved at step {last_step(login.folder / 'run')}" in line
    assert result(login.folder / "run")["exit_code"] == 75


def test_engine_srun_without_an_allocation_is_one_line(login: Login) -> None:
    done = login.type(*train("launch.engine=srun", "hydra.run.dir=run"))
    assert done.returncode == 2
    assert done.stderr.startswith("error: launch.engine=srun: no allocation; SLURM_JOB_ID is unset")
    assert not (login.folder / "run").exists()


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
        (3, ["resume=nowhere"], ""),
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
def test_a_task_that_never_comes_ends_the_others_with_7(login: Login) -> None:
    one = f"[ $SLURM_PROCID = 1 ] || exec {typed(*TWO, 'hydra.run.dir=run')}"
    done = login.type("srun", "-N2", "-n2", "sh", "-c", one)
    assert done.returncode == 7, done.stderr
    assert len(own_lines(done.stderr)) == 1


# Jobs that are told to make room


def begun(login: Login, options: str = "-N2 -n2", *more: str) -> str:
    """A job of a run of two tasks that requeues itself; returns its number once it has saved."""
    script = f"srun --kill-on-bad-exit=0 {typed(*TWO, *more, 'hydra.run.dir=run')}\n{REQUEUE}"
    job = login.sbatch(f"--requeue {options}", script, env=SLOW)
    until(lambda: saved(login.folder / "run"), login.said)
    return job


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
    until(lambda: saved(login.folder / "run"), login.said)
    login.cluster.run("scancel", "--batch", "--signal=USR1", job)
    assert login.ended(job)["Restarts"] == "1"
    assert equal(login.folder / "run", references)


@pytest.mark.slow
def test_a_preempted_job_saves_waits_and_goes_on(login: Login, references: Path) -> None:
    job = begun(login, "-N2 -n8")
    urgent = login.sbatch("-p high -N2 -n8", "sleep 3")
    login.ended(urgent)
    assert login.ended(job)["Restarts"] == "1"
    assert equal(login.folder / "run", references)


@pytest.mark.slow
def test_a_job_at_its_time_limit_has_saved(login: Login) -> None:
    job = begun(login, "-N2 -n2 --time=1", "epochs=1000")
    login.ended(job, "TIMEOUT")
    run = login.folder / "run"
    assert result(run)["exit_code"] == 75
    assert f"it is saved at step {last_step(run)}" in result(run)["error"]


@pytest.mark.slow
def test_a_cancelled_job_has_saved_and_is_not_requeued(login: Login) -> None:
    job = begun(login, "-N2 -n2", "epochs=1000")
    login.cluster.run("scancel", job)
    assert login.ended(job, "CANCELLED")["Restarts"] == "0"
    until(lambda: not login.processes())
    assert last_step(login.folder / "run") > 0


@pytest.mark.slow
@pytest.mark.parametrize("every", [2, 1], ids=["at any time", "most likely during a save"])
def test_a_job_that_an_administrator_requeues_goes_on(
    login: Login, references: Path, every: int
) -> None:
    options = [f"checkpoint.every={every}" if "checkpoint.every" in text else text for text in TWO]
    script = f"srun --kill-on-bad-exit=0 {typed(*options, 'hydra.run.dir=run')}\n{REQUEUE}"
    job = login.sbatch("--requeue -N2 -n2", script, env=SLOW)
    until(lambda: saved(login.folder / "run"), login.said)
    login.cluster.run("scontrol", "requeue", job)
    assert login.ended(job)["Restarts"] == "1"
    assert equal(login.folder / "run", references, options)


@pytest.mark.slow
def test_a_node_whose_slurmd_was_killed_finishes_the_run(login: Login, references: Path) -> None:
    job = begun(login)
    login.cluster.kill_slurmd("nodeb")
    try:
        until(lambda: "ok" in (login.folder / "run" / "result.json").read_text())
    finally:
        login.cluster.start_slurmd("nodeb")
    login.ended(job)
    assert equal(login.folder / "run", references)


# Several jobs


@pytest.mark.slow
def test_the_jobs_of_an_array_are_runs_of_their_own(login: Login) -> None:
    words = [*TWO, "max_steps=4"]
    run = "seed=$SLURM_ARRAY_TASK_ID hydra.run.dir=run$SLURM_ARRAY_TASK_ID"
    job = login.sbatch("--array=0-2 -N2 -n2", f"srun {typed(*words)} {run}")
    until(lambda: not login.cluster.running(), login.said)
    assert job
    seeds = [result(login.folder / f"run{number}")["seed"] for number in range(3)]
    assert seeds == [0, 1, 2], login.said()


@pytest.mark.slow
def test_jobs_at_the_same_time_have_stores_of_their_own_and_a_taken_port_does_no_harm(
    login: Login,
) -> None:
    taken = (
        f"{sys.executable} -c 'import os, socket, time; from ninefold import ranks; "
        'ports = ranks.found({**os.environ, **dict(SLURM_STEP_ID="0", '
        'SLURM_STEP_NUM_TASKS="2", SLURM_STEP_TASKS_PER_NODE="1(x2)", SLURM_LOCALID="0", '
        'SLURM_STEP_NODELIST="nodea,nodeb", SLURM_PROCID="0", SLURM_NODEID="0")}).ports; '
        'kept = socket.create_server(("", ports[0])); open("taken", "w"); time.sleep(60)\' &\n'
        "until [ -e taken ]; do sleep 0.1; done\n"
    )
    words = [*TWO, "max_steps=4"]
    runs = [
        login.sbatch(
            "-N2 -n2",
            f"{taken * (seed == 1)}srun {typed(*words, f'seed={seed}', f'hydra.run.dir=run{seed}')}"
            "\ncode=$?; kill %1 2>/dev/null; exit $code",
        )
        for seed in (0, 1)
    ]
    for job in runs:
        login.ended(job)
    assert [result(login.folder / f"run{seed}")["seed"] for seed in (0, 1)] == [0, 1]


# submitit


SUBMITIT = [
    "-m",
    *[text for text in RUN if not text.startswith(("epochs", "deterministic"))],
    *QUICK,
    "epochs=3",
    "deterministic=true",
    "hydra/launcher=submitit_slurm",
    "hydra.launcher.timeout_min=40",
    "hydra.sweep.dir=sweep",
]
TASKS = ["hydra.launcher.nodes=2", "parallel=ddp", "parallel.processes=2"]


def runs_of(login: Login) -> list[Path]:
    return sorted((login.folder / "sweep").glob("[0-9]*/"))


def jobs_of(login: Login) -> list[str]:
    return login.cluster.run("squeue", "--noheader", "--array", "--format=%A").split()


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
    until(lambda: runs_of(login) and saved(runs_of(login)[0]), process=process)
    (job,) = jobs_of(login)
    login.cluster.run("scancel", "--signal=USR2", job)
    login.cluster.wait(job, "COMPLETED", "FAILED")
    _, stderr = process.communicate(timeout=240)
    assert process.returncode == 0, stderr
    assert login.cluster.state(job)["Restarts"] == "1"
    assert equal(runs_of(login)[0], references)


@pytest.mark.slow
def test_a_cancelled_job_of_submitit_does_not_end_the_others(login: Login) -> None:
    process = login.spawn(train(*SUBMITIT, *TASKS, "seed=0,1"), env=SLOW)
    until(lambda: len(runs_of(login)) == 2 and all(map(saved, runs_of(login))), process=process)
    login.cluster.run("scancel", jobs_of(login)[0])
    _, stderr = process.communicate(timeout=240)
    assert process.returncode != 0, stderr
    until(lambda: not login.cluster.running())
    assert sorted(result(run)["exit_code"] for run in runs_of(login)) == [0, 75]


@pytest.mark.slow
def test_ctrl_c_of_the_command_stops_the_jobs_of_submitit(login: Login) -> None:
    process = login.spawn(train(*SUBMITIT, *TASKS, "epochs=1000", "seed=0,1"), env=SLOW)
    until(lambda: len(runs_of(login)) == 2 and all(map(saved, runs_of(login))), process=process)
    process.send_signal(signal.SIGINT)
    _, stderr = process.communicate(timeout=90)
    assert process.returncode == 130, stderr
    assert len(own_lines(stderr)) == 1
    until(lambda: not login.cluster.running())
    for run in runs_of(login):
        assert f"it is saved at step {last_step(run)}" in result(run)["error"]


# A study in one allocation


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
    until(lambda: saved(login.folder / "run"), process=process)
    os.kill(int((login.folder / "pid").read_text()), signal.SIGINT)
    _, stderr = process.communicate(timeout=60)
    assert process.returncode == 130, stderr
    (line,) = own_lines(stderr)
    assert f"it is saved at step {last_step(login.folder / 'run')}" in line


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
    job = login.sbatch("--requeue -N2 -n8", script, env=SLOW)
    until(lambda: any(map(saved, (login.folder / "study").glob("*ddp*/"))), login.said)
    login.ended(login.sbatch("-p high -N2 -n8", "sleep 1"))
    assert login.ended(job)["Restarts"] == "1"
    assert equal(next((login.folder / "study").glob("*ddp*/")), references)
