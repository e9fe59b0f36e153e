"""Set B: whatever breaks, whenever it does: one line, the right code, nobody left, nothing lost.

Disks are filled and made read-only for real, which takes root.
"""

import re
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.conftest import ROOT, Shell, result, wait_until
from tests.faults.runs import (
    STEPS,
    STRATEGY,
    again,
    fault,
    finished,
    fired,
    job,
    last_step,
    leftovers,
    one_after_another,
    reference,
    state_hash,
)

EVERY = 2  # steps between checkpoints
TIMEOUT = 4  # seconds a process waits for a peer here
GRACE = 10  # seconds from a signal to the end
# Phase: the injector's phase and number, and the step that is then being taken.
PHASES = {
    "start": ("start", 0, 0),
    "first batch": ("step", 1, 1),
    "mid-epoch": ("step", 9, 9),
    "validation": ("validation", 2, 6),
    "write": ("write", 9, 2),
    "last step": ("step", STEPS, STEPS),
}
# Fault: the exit code, how its line begins, and the phases in which there is no such thing.
FAULTS = {
    "kill_rank0": (5, "error: rank=0: its process was killed (SIGKILL)", ()),
    "kill_rank1": (5, "error: rank=1: its process was killed (SIGKILL)", ()),
    "kill_launcher": (-9, None, ()),
    "term_launcher": (75, "error: signal=SIGTERM: the run was stopped; it is saved at step", ()),
    "int_launcher": (130, "error: signal=SIGINT: the run was stopped; it is saved at step", ()),
    "term_group": (75, "error: signal=SIGTERM: the run was stopped; it is saved at step", ()),
    "freeze_rank1": (7, "error: rank=1: its process hung", ()),
    "exception": (1, "error: rank=0: RuntimeError: injected", ()),
    "segfault": (1, "error: rank=0: its process died of SIGSEGV", ()),
    "full": (5, "error: checkpoint=", ("start", "write", "last step")),
    "readonly": (5, "error: checkpoint=", ("start", "write", "last step")),
}


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Path]:
    """A small disk of its own, which a fault can fill."""
    folder = tmp_path / "disk"
    folder.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=2m", "none", str(folder)], check=True)
    yield folder
    subprocess.run(["umount", "--recursive", "--lazy", str(folder)], check=True)


CASES = [
    (strategy, name, phase)
    for strategy in STRATEGY
    for name, (_, _, never) in FAULTS.items()
    for phase in PHASES
    if phase not in never and not (strategy == "none" and name.endswith("rank1"))
]


@pytest.mark.slow
@pytest.mark.parametrize(("strategy", "name", "phase"), CASES)
def test_a_broken_run_ends_as_told_and_goes_on(shell, references, request, strategy, name, phase):
    code, line, _ = FAULTS[name]
    if (name, phase) == ("exception", "validation"):  # a mistake in a user's own `measure`
        code, line = 2, "error: task=Task: its `measure` failed in an evaluation"
    where, number, step = PHASES[phase]
    folder = shell.folder
    if name in ("full", "readonly"):
        folder = request.getfixturevalue("disk")
    run, mark = folder / "run", shell.folder / "mark"
    workers = 2 if name == "term_group" else 0
    options = [*job(strategy, "fp32"), f"loader.workers={workers}"]
    limits = [f"launch.timeout={TIMEOUT}", f"launch.grace={GRACE}"]
    rank = 1 if (strategy == "ddp2" and name.startswith(("term", "int"))) else 0
    if where == "write":
        rank = 0  # who writes
    env = {**fault(name, where, rank, number, mark), "FAULT_DISK": str(folder)}

    began = time.monotonic()
    done = shell.train(*options, *limits, f"hydra.run.dir={run}", env=env)
    assert time.monotonic() - began < 60 + TIMEOUT
    assert fired(mark) == 1
    assert not shell.survivors()
    harmless = done.returncode == 0 and phase == "last step" and result(run)["status"] == "ok"
    if not harmless:
        assert done.returncode == code, done.stderr
        assert "Traceback" not in done.stderr
        check_line(done.stderr, line, phase)

    saved = last_step(run)  # raises if something was written and none of it can be read
    if name.startswith(("term", "int")):
        assert harmless or saved >= step, "steps were lost"
    else:
        # The last checkpoint may still have been on its way to the disk, but not the one before.
        assert saved >= step - 1 - 2 * EVERY, "more was lost than since the last checkpoint"
    if name == "full":
        (folder / "filler").unlink()
    if name == "readonly":
        subprocess.run(["umount", str(run / "checkpoints")], check=True)
    if harmless:
        whole = reference(references, job(strategy, "fp32"))
    else:
        start = again(run) if saved else [*options, f"hydra.run.dir={run}"]
        whole = finished(shell, references, start, job(strategy, "fp32"))
    assert state_hash(run) == state_hash(whole)
    assert not leftovers(run)


def check_line(stderr: str, line: str | None, phase: str) -> None:
    """One line that names the root cause, or nothing where nobody is left to write it."""
    if line is None:
        assert stderr == ""
        return
    if phase == "start" and "signal=" in line:  # there is nothing to save yet, or it just began
        line = line.partition(": the run")[0]
    assert stderr.startswith(line), stderr
    assert re.fullmatch(r"error: [^\n]+; [^\n]+; [^\n]+\n", stderr), stderr


@pytest.mark.slow
def test_a_run_that_cannot_stop_is_ended_within_its_grace(shell):
    run, mark = shell.folder / "run", shell.folder / "mark"
    env = fault("freeze_rank1", "step", 0, 9, mark)
    train = str(ROOT / "train.py")
    options = [*job("ddp2", "fp32"), "launch.grace=3", f"hydra.run.dir={run}"]
    process = shell.start(train, *options, env=env)
    wait_until(lambda: fired(mark), process)
    began = time.monotonic()
    process.terminate()
    process.communicate(timeout=60)
    assert time.monotonic() - began < 3 + 5
    assert process.returncode == 75


@pytest.mark.slow
def test_crashed_workers_are_restarted_from_the_last_checkpoint(shell, references):
    run, mark = shell.folder / "run", shell.folder / "mark"
    env = fault("kill_rank1", "step", 0, 9, mark)
    # the fault would fire again in the second attempt, which counts its steps anew: 9 of 10
    options = [*job("ddp2", "fp32"), "launch.max_restarts=2", f"hydra.run.dir={run}"]
    shell.train(*options, env=env, code=0)
    assert fired(mark) == 2
    assert state_hash(run) == state_hash(reference(references, job("ddp2", "fp32")))


KILLED_AFTER_A_RESTART = """
import os
from ninefold.model.convnet import ConvNet

class Net(ConvNet):
    steps = 0
    def forward(self, inputs):
        self.steps += self.training
        if self.steps > 9:
            if os.environ["TORCHELASTIC_RESTART_COUNT"] == "0":
                raise RuntimeError("of the first attempt")
            os.kill(os.getpid(), 9)
        return super().forward(inputs)
"""


def test_the_error_of_a_run_that_was_restarted_is_that_of_its_last_attempt(shell):
    (shell.folder / "own.py").write_text(KILLED_AFTER_A_RESTART)
    done = shell.train(
        *("model.net._target_=own.Net", "launch.max_restarts=1"),
        env={"PYTHONPATH": f"{shell.folder}:{ROOT}"},
        code=5,
    )
    first, last = done.stderr.splitlines()
    assert re.match(
        "warning: rank=0: RuntimeError: of the first .*; restart 1 of launch.max", first
    )
    assert last.startswith("error: rank=0: its process was killed (SIGKILL); ")


@pytest.mark.slow
def test_a_failure_that_would_come_again_is_not_tried_again(shell):
    began = time.monotonic()
    done = shell.train(*job("none", "fp32", "launch.max_restarts=5", "optimizer.lr=1e30"), code=6)
    assert done.stderr.count("\n") == 1
    assert time.monotonic() - began < 30


# Numerics: a number that is not finite is told with its step, wherever it comes from.


Ended = tuple[Path, subprocess.CompletedProcess[str]]
# The first three are poisoned at step 9; the others have no use for the fault that is injected.
NUMBERS = {
    "told": ["log_every=5"],
    "skipped fp32": ["amp=fp32", "on_nonfinite=skip"],
    "skipped scaler": ["amp=scaler", "on_nonfinite=skip"],
    "test loss": ["task._target_=tests.faults.inject.InfiniteTest"],
    "overflow scaler": ["amp=scaler", "amp.dtype=float16"],
    "overflow fp32": ["amp=fp32", "on_nonfinite=skip"],
}
OVERFLOWING = ["epochs=20", "optimizer.lr=1e-9", "task._target_=tests.faults.inject.Overflowing"]


@pytest.fixture(scope="module")
def numbers(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Ended]:
    """Where each of NUMBERS ran, and what it came to."""
    shell = Shell(tmp_path_factory.mktemp("numbers"))
    mark, runs, commands = shell.folder / "mark", [], []
    for name, options in NUMBERS.items():
        runs.append(shell.folder / name.replace(" ", "-"))
        more = [*options, *(OVERFLOWING if name.startswith("overflow") else [])]
        given = job("none", "fp32", *more, "launch.inline=true")
        commands.append(["train.py", *given, f"hydra.run.dir={runs[-1]}"])
    done = one_after_another(shell, *commands, env=fault("poison_nan", "step", 0, 9, mark))
    assert fired(mark) == 3
    return dict(zip(NUMBERS, zip(runs, done, strict=True), strict=True))


def check_told(run: Path, done: subprocess.CompletedProcess[str]) -> None:
    assert done.returncode == 6, done.stderr
    assert done.stderr.startswith("error: loss=nan: not finite at step 9;")
    for part in ("all parameters were finite before it", "learning rate", "loss scale", "epoch"):
        assert part in done.stderr
    assert last_step(run) == 8
    assert result(run)["status"] == "diverged"


def test_a_loss_that_is_not_finite_is_told_with_its_step_and_the_cause(numbers):
    check_told(*numbers["told"])


def test_a_loss_that_is_not_finite_on_one_of_two_processes_is_told_as_well(shell):
    run, mark = shell.folder / "run", shell.folder / "mark"
    env = fault("poison_nan", "step", 1, 9, mark)
    done = shell.train(*job("ddp2", "fp32", "log_every=5"), f"hydra.run.dir={run}", env=env)
    assert fired(mark) == 1
    check_told(run, done)


@pytest.mark.parametrize("amp", ["fp32", "scaler"])
def test_a_step_that_is_not_finite_can_be_skipped(numbers, amp):
    run, done = numbers[f"skipped {amp}"]
    assert done.returncode == 0, done.stderr
    assert result(run)["skipped_steps"] == 1
    assert result(run)["grad_scaler"] is (amp == "scaler")


def test_a_test_loss_that_is_not_finite_is_an_error_and_never_the_best(numbers):
    run, done = numbers["test loss"]
    assert done.returncode == 6, done.stderr
    assert done.stderr.startswith("error: test_loss=inf: not finite after step 6;")
    assert not (run / "checkpoints" / "best.pt").exists()


@pytest.mark.parametrize("amp", ["fp32", "scaler"])
def test_gradients_that_overflow_forever_are_an_error(numbers, amp):
    run, done = numbers[f"overflow {amp}"]
    assert done.returncode == 6, done.stderr
    said = {
        "fp32": "gradients=not finite: too many steps were skipped, ",
        "scaler": r"scale=\S+: collapsed by step \d+;",
    }
    assert re.match(f"error: {said[amp]}", done.stderr), done.stderr
    assert (run / "metrics.jsonl").exists()
