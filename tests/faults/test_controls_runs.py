"""Negative controls: with a safeguard taken out, sets A and B must fail, or they prove nothing."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.conftest import ROOT, Shell
from tests.faults.runs import again, fault, fired, job, reference, state_hash

pytestmark = pytest.mark.slow


@pytest.fixture(autouse=True)
def in_the_table(record_property: Callable[[str, object], None]) -> None:
    record_property("set", "negative controls")


def resumed_hash(shell: Shell, options: list[str], saving: str, resuming: str, at: int) -> str:
    """Where a run ends that is stopped at step `at` and resumed, with a mutant in each part."""
    run, mark = shell.folder / "run", shell.folder / "mark"
    env = {**fault("usr1_rank0", "step", 0, at, mark), "MUTANT": saving}
    assert shell.train(*options, f"hydra.run.dir={run}", env=env).returncode == 75
    assert fired(mark) == 1
    done = shell.train(*again(run), env={"MUTANT": resuming})
    assert done.returncode == 0, done.stderr
    return state_hash(run)


@pytest.mark.parametrize(
    ("precision", "saving", "resuming"),
    [("fp16", "drop_scaler", ""), ("fp32", "drop_rng", ""), ("fp32", "", "drop_position")],
)
def test_set_a_sees_that_a_part_of_the_state_is_missing(
    shell: Shell, precision: str, saving: str, resuming: str
) -> None:
    options = job("none", precision)
    expected = state_hash(reference(shell.folder, options))
    assert resumed_hash(shell, options, saving, resuming, at=9) != expected


def test_set_b_sees_that_processes_outlive_their_launcher(shell: Shell) -> None:
    early = shell.folder / "sitecustomize.py"  # Python imports it before anything else
    early.write_text("from tests.faults import mutants\nmutants.no_leash()\n")
    mark = shell.folder / "mark"
    env = fault("kill_launcher", "step", 0, 9, mark)
    env["PYTHONPATH"] = os.pathsep.join([str(shell.folder), str(ROOT)])
    options = job("none", "fp32", "epochs=100000", "hydra.run.dir=run")
    nowhere = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}  # they hold on to it
    process = shell.start(str(ROOT / "train.py"), *options, env=env, fresh=True, **nowhere)
    assert process.wait(timeout=120) == -signal.SIGKILL
    left = shell.survivors()
    for process in left:
        os.kill(process, signal.SIGKILL)
    assert fired(mark) == 1
    assert left


def test_the_mutants_are_gone_without_their_name(shell: Shell, tmp_path: Path) -> None:
    options = job("none", "fp32")
    expected = state_hash(reference(shell.folder, options))
    assert resumed_hash(shell, options, "", "", at=9) == expected
