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
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar

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

    forks: ClassVar[bool] = False

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
            until(lambda: len(of_a_step()) == 2)
            made.kill_slurmd("nodea")
            made.lose("nodea")
        assert of_a_step() == []
    finally:
        shutil.rmtree(folder)


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


@pytest.mark.slow
@pytest.mark.parametrize(
    ("code", "overrides", "fault"),
    [
        (0, ["max_steps=2"], ""),
        (6, [], "poison_nan@step:1:3"),
        (130, [], "int_rank1@step:1:3"),
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


@pytest.mark.slow
def test_the_tasks_of_a_job_of_submitit_are_one_run(login: Login, references: Path) -> None:
    done = login.type(*train(*SUBMITIT, *TASKS, "seed=0,1"))
    assert done.returncode == 0, done.stderr
    assert [result(run)["processes"] for run in runs_of(login)] == [2, 2]
    assert equal(runs_of(login)[0], references)


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
