"""Worker processes: those that do not end when a peer has failed, and those that take turns."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from ninefold.config.spec import RunSpec
from ninefold.errors import PeerError
from ninefold.launch import turns
from tests.conftest import ROOT, Shell

# Rank 1 ends up in a call that no signal to its Python code interrupts, as a rank that waits for
# NCCL does: it keeps Python's lock.
STUCK = """
import ctypes, os, time
from ninefold.task.classification import Classification
calls = 0
class Stuck(Classification):
    def loss(self, output, target):
        global calls
        calls += output.requires_grad and not output.is_meta  # in training, not in its trial
        if calls == 3:
            if os.environ["RANK"] == "0":
                print("failed at", time.time(), flush=True)
                raise RuntimeError("CUDA out of memory. Tried to allocate 2.00 GiB.")
            ctypes.PyDLL(None).sleep(300)
        return super().loss(output, target)
"""


def test_a_rank_that_fails_beside_one_stuck_in_a_c_call_ends_the_command_soon(
    shell: Shell,
) -> None:
    (shell.folder / "stuck.py").write_text(STUCK)
    done = shell.train(
        *("parallel=ddp", "parallel.processes=2", "task._target_=stuck.Stuck", "clock.warmup=0"),
        *("threads=2", "logger=console"),
        env={"PYTHONPATH": f"{shell.folder}:{ROOT}"},
    )
    ended = time.time()
    assert done.returncode == 5, done.stderr
    assert done.stderr.startswith("error: memory=exhausted: CUDA out of memory")
    (failed,) = [line for line in done.stdout.splitlines() if line.startswith("failed at")]
    assert ended - float(failed.split()[-1]) < 10  # about 3 s on an idle machine; elastic waits 30


@pytest.mark.parametrize("inline", ["false", "true"])
def test_a_failure_from_a_worker_process_is_not_explained_by_elastics_own_error(
    shell: Shell, inline: str
) -> None:
    done = shell.train(
        *("optimizer.lr=1e30", "epochs=1", "logger=quiet"),
        *(f"launch.inline={inline}", "hydra.run.dir=run"),
        env={"HYDRA_FULL_ERROR": "1"},
    )
    assert done.returncode == 6
    *traceback, line = done.stderr.splitlines()
    assert line.startswith("error: ")
    assert bool(traceback) == (inline == "true")
    assert "Traceback" in (shell.folder / "run" / "run.log").read_text()


@pytest.mark.slow
def test_a_process_that_is_not_ready_in_time_is_given_up_by_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(turns, "START_SECONDS", 0.0)
    folder = tmp_path / "ddp-fp32"
    folder.mkdir()
    named = pytest.raises(PeerError, match="ddp-fp32 did not answer in 0 s")
    with turns.Turns() as alive, named:
        alive.start(RunSpec("time", "threads: 1", folder, started=0.0), 1)


STOPPED = """
import sys, time
from pathlib import Path
from benchmarks import ours
from ninefold.config.spec import RunSpec
from ninefold.launch import forkserver
from ninefold.launch.turns import Turns

def states():
    time.sleep(0.2)
    files = [Path(f"/proc/{pid}/stat").read_text() for pid in run.processes()]
    return [text.rpartition(")")[2].split()[0] for text in files]

if __name__ == "__main__":
    job = ours.job("parallel=ddp", "launch.cpu_processes=2", "clock.warmup=1", "logger=quiet")
    forkserver.start(job.resolved)
    folder = Path("run")
    folder.mkdir()
    with Turns() as turns:
        run = turns.start(RunSpec("time", job.text, folder, started=time.time()), 2)
        first = states()
        assert run.turn(1, 2) > 0
        print(first, states(), file=sys.stderr)
"""


def test_between_turns_all_processes_of_a_run_are_stopped(shell: Shell) -> None:
    """Otherwise OpenMP threads that wait would spin on the cores that another cell computes on."""
    (shell.folder / "stopped.py").write_text(STOPPED)
    done = shell.run("stopped.py", forked=True, env={"PYTHONPATH": str(ROOT)})
    assert done.stderr.splitlines() == ["['T', 'T'] ['T', 'T']"]
