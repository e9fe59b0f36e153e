"""Set F: runs that Slurm starts, on one node or two, its requeues, and sweeps by submitit."""

import os
import shlex
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar

import pytest

from tests.conftest import ROOT, Shell, end, result, wait_until
from tests.faults.runs import RUN, last_step, reference, state_hash
from tests.faults.slurm import Cluster, cluster, missing

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(bool(missing()), reason=f"it lacks {', '.join(missing())}"),
]

TRAIN = [sys.executable, str(ROOT / "train.py")]
TWO = [*RUN, "threads=1", "parallel=ddp", "parallel.processes=2", "hydra.run.dir=run"]
SLOW = {"SLOW": "0.4"}  # a run of 18 steps takes 7 seconds and more
TORCHRUN = (
    "srun sh -c '"
    f"{sys.executable} -m torch.distributed.run --nnodes 2 --node-rank $SLURM_NODEID "
    "--master-addr nodea --master-port 29511 --nproc-per-node 1 "
    f"{ROOT / 'train.py'} {' '.join(TWO)}'"
)


@dataclass
class Login(Shell):
    """A shell on nodea, on which the commands of Slurm are typed."""

    forks: ClassVar[bool] = False

    cluster: Cluster = field(kw_only=True)

    @property
    def saved(self) -> bool:
        """Whether a run has saved something."""
        return any(self.folder.glob("**/checkpoints/manifest.json"))

    def spawn(self, command: Any, **options: Any) -> subprocess.Popen[str]:
        path = os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])
        env = {**self.cluster.environment(), "PYTHONPATH": path, **options.pop("env", {})}
        typed = self.cluster.on("nodea", *command, folder=self.folder)
        return super().spawn(typed, env=env, **options)

    def type(
        self, *command: str, code: int = 0, **options: Any
    ) -> subprocess.CompletedProcess[str]:
        return self.finish(self.spawn(command, **options), code)

    def sbatch(self, options: str, script: str, env: Mapping[str, str] | None = None) -> str:
        """Hand in a batch script; returns the job's number."""
        (self.folder / "job.sh").write_text(f"#!/bin/bash\n{script}\n")
        words = ["--parsable", "--output=job-%j.log", "--open-mode=append", *options.split()]
        return self.type("sbatch", *words, "job.sh", env=env or {}).stdout.strip()

    def ended(self, job: str, restarts: str = "0") -> None:
        """Wait until a job has completed; it must have been restarted so often."""
        # Not for other ends: while a job is requeued it is shown as failed for a moment.
        assert self.cluster.wait(job, "COMPLETED")["Restarts"] == restarts, self.said()

    def said(self) -> str:
        """What the batch scripts printed."""
        return "\n".join(path.read_text()[-3000:] for path in self.folder.glob("job-*.log"))


@pytest.fixture(scope="module")
def nodes() -> Iterator[Cluster]:
    """A Slurm of two nodes."""
    with tempfile.TemporaryDirectory(prefix="nf-") as folder, cluster(Path(folder)) as made:
        yield made


@pytest.fixture
def login(tmp_path: Path, nodes: Cluster) -> Iterator[Login]:
    """A shell on nodea; the test fails if it leaves a job or a process behind."""
    shell = Login(tmp_path, seconds=400, cluster=nodes)
    yield shell
    left = [] if nodes.running() else shell.survivors()
    nodes.clear()
    end(shell.survivors())  # of a job that the test did not wait for
    assert not left, f"processes left behind: {left}"


def equal(run: Path, references: Path) -> bool:
    """Whether a run ended where one of two processes does that Slurm has not started."""
    return state_hash(run) == state_hash(reference(references, TWO[:-1]))


def own_lines(stderr: str) -> list[str]:
    return [line for line in stderr.splitlines() if line.startswith("error: ")]


@pytest.mark.parametrize(
    ("options", "script"),
    [
        ("-N2 -n2", f"srun {shlex.join([*TRAIN, *TWO])}"),
        ("-N1 -n2", f"srun {shlex.join([*TRAIN, *TWO])}"),
        ("-N2 --ntasks-per-node=1", TORCHRUN),
    ],
    ids=["two nodes", "two tasks of a node", "torchrun on each of two nodes"],
)
def test_runs_are_bitwise_equal_however_slurm_starts_them(login, references, options, script):
    login.ended(login.sbatch(options, script))
    assert equal(login.folder / "run", references)


def test_a_shell_of_salloc_is_one_command_which_starts_its_processes_itself(login):
    done = login.type("salloc", "-Q", "-N2", "-n4", *TRAIN, *TWO)
    assert result(login.folder / "run")["processes"] == 2
    assert done.stdout.count("  folder /") == 1


@pytest.mark.parametrize(
    ("code", "overrides", "fault"), [(2, ["epohcs=3"], ""), (6, [], "poison_nan@step:1:3")]
)
def test_exit_codes_come_to_srun_unchanged(login, code, overrides, fault):
    env = {"FAULT": fault, "FAULT_MARK": str(login.folder / "mark")} if fault else {}
    srun = ["srun", "-N2", "-n2", "--kill-on-bad-exit=0"]
    done = login.type(*srun, *TRAIN, *TWO, *overrides, env=env, code=code)
    assert len(set(own_lines(done.stderr))) == 1, done.stderr


def test_a_signal_to_a_step_saves_and_is_the_exit_code_of_srun(login):
    process = login.spawn(["srun", "-N2", "-n2", *TRAIN, *TWO], env=SLOW)
    wait_until(lambda: login.saved, process=process)
    login.cluster.run("scancel", "--signal=USR1", login.cluster.run("squeue", "-ho%A").strip())
    done = login.finish(process, code=75)
    (line,) = set(own_lines(done.stderr))
    assert f"it is saved at step {last_step(login.folder / 'run')}" in line
    assert result(login.folder / "run")["exit_code"] == 75


# As docs/how-to/clusters.md has them.
REQUEUE = "[ $code = 75 ] && scontrol requeue $SLURM_JOB_ID; exit $code"
STEPS = f"srun --kill-on-bad-exit=0 {shlex.join([*TRAIN, *TWO])}; code=$?; {REQUEUE}"
BATCH = f"""
{shlex.join([*TRAIN, *TWO])} &
trap 'kill -USR1 $!' USR1 TERM
wait $!; code=$?
while kill -0 $! 2>/dev/null; do wait $!; code=$?; done
{REQUEUE}
"""


@pytest.mark.parametrize(
    ("options", "script", "tells"),
    [
        ("-N2 -n2", STEPS, ["scancel", "--signal=USR1"]),
        ("-N2 -n2", STEPS, ["scontrol", "requeue"]),
        ("-N1 -n2", BATCH, ["scancel", "--batch", "--signal=USR1"]),
    ],
    ids=["signal to the steps", "by an administrator", "signal to the batch script"],
)
def test_a_job_that_is_requeued_goes_on_to_the_same_end(login, references, options, script, tells):
    job = login.sbatch(f"--requeue {options}", script, env=SLOW)
    wait_until(lambda: login.saved, said=login.said)
    login.cluster.run(*tells, job)
    login.ended(job, restarts="1")
    assert equal(login.folder / "run", references)


SUBMITIT = [
    *(*TRAIN, "-m", *TWO[:-2], "hydra/launcher=submitit_slurm", "hydra.launcher.timeout_min=40"),
    *("hydra.launcher.nodes=2", "study.ask=[score]", "hydra.sweep.dir=sweep"),
]


def test_submitit_runs_a_sweep_whose_jobs_have_several_tasks(login):
    login.type(*SUBMITIT, "parallel.processes=2", "amp=fp32,autocast", "max_steps=4")
    runs = [result(path.parent) for path in login.folder.glob("sweep/[0-9]*/result.json")]
    assert [(run["status"], run["processes"]) for run in runs] == [("ok", 2)] * 2
    assert (login.folder / "sweep" / "report" / "report.md").exists()


def test_a_job_that_submitit_requeues_goes_on(login, references):
    process = login.spawn([*SUBMITIT, "parallel.processes=2", "seed=0"], env=SLOW)
    wait_until(lambda: login.saved, process=process)
    (job,) = login.cluster.run("squeue", "--noheader", "--array", "--format=%i").split()
    login.cluster.run("scancel", "--signal=USR2", job)
    login.cluster.wait(job, "COMPLETED", "FAILED")
    login.finish(process, code=0)
    assert login.cluster.state(job)["Restarts"] == "1"
    (run,) = (login.folder / "sweep").glob("[0-9]*/")
    assert equal(run, references)
