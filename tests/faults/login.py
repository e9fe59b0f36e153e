"""A shell on a node of the Slurm of two nodes, and the run that its jobs train."""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar

import pytest

from tests.conftest import ROOT, Shell
from tests.faults.runs import RUN, reference, state_hash
from tests.faults.slurm import Cluster, missing

needed = pytest.mark.skipif(bool(missing()), reason=f"it lacks {', '.join(missing())}")

TRAIN = [sys.executable, str(ROOT / "train.py")]
QUICK = ["threads=1", "study.ask=[accuracy]"]
TWO = [*RUN, "threads=1", "parallel=ddp", "parallel.processes=2"]
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


def train(*overrides: str) -> list[str]:
    """The command with `overrides`, of which the last of a key holds."""
    return [*TRAIN, *{override.partition("=")[0]: override for override in overrides}.values()]


def typed(*overrides: str) -> str:
    return shlex.join(train(*overrides))


def saved(run: Path) -> bool:
    return (run / "checkpoints" / "manifest.json").exists()


def equal(run: Path, references: Path, options: list[str] = TWO) -> bool:
    return state_hash(run) == state_hash(reference(references, options))


def own_lines(stderr: str) -> list[str]:
    return [line for line in stderr.splitlines() if line.startswith("error: ")]
