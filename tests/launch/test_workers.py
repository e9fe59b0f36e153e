"""Worker processes: those that do not end when a peer has failed, and those that take turns."""

import os
import time

import pytest

from tests.conftest import ROOT

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


def test_a_rank_that_fails_beside_one_stuck_in_a_c_call_ends_the_command_soon(shell):
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
def test_a_failure_from_a_worker_process_is_not_explained_by_elastics_own_error(shell, inline):
    done = shell.train(
        *("optimizer.lr=1e30", "epochs=1", "logger=quiet"),
        *(f"launch.inline={inline}", "hydra.run.dir=run"),
        env={"HYDRA_FULL_ERROR": "1"},
        code=6,
    )
    *traceback, line = done.stderr.splitlines()
    assert line.startswith("error: ")
    assert bool(traceback) == (inline == "true")
    assert "Traceback" in (shell.folder / "run" / "run.log").read_text()


ROUNDS = """
import os, sys, time
from pathlib import Path
from benchmarks import ours
from ninefold.config.spec import RunSpec
from ninefold.launch import forkserver
from ninefold.launch.turns import TurnTaker

if __name__ == "__main__":
    job = ours.job("clock.warmup=0", "logger=quiet")
    forkserver.start(job.resolved)
    folder, held = Path("run"), []
    folder.mkdir()
    for _ in range(3):
        TurnTaker(RunSpec("time", job.text, folder, started=time.time()), 1).close()
        held.append((len(os.listdir("/proc/self/fd")), len(os.listdir("/proc/self/task"))))
    print(held, file=sys.stderr)
    assert held[1:] == held[:1] * 2
"""


def test_further_rounds_hold_no_more_open_files_and_threads(shell):
    (shell.folder / "rounds.py").write_text(ROUNDS)
    path = f"{shell.folder}:{ROOT}:{os.environ.get('PYTHONPATH', '')}"
    shell.run("rounds.py", forked=True, code=0, env={"PYTHONPATH": path})


STOPPED = """
import sys, time
from contextlib import closing
from pathlib import Path
import torch
from torch.utils.data import Dataset
from benchmarks import ours
from ninefold.config.spec import RunSpec
from ninefold.launch import forkserver
from ninefold.launch.turns import TurnTaker
from ninefold.tournament.plan import Turn

class Rows(Dataset):
    def __init__(self):
        self.file = open("read", "ab", buffering=0)

    def __len__(self):
        return 64

    def __getitem__(self, number):
        time.sleep(0.02)
        self.file.write(b"1")
        return torch.zeros(1, 8, 8), number % 10

def states():
    time.sleep(0.2)
    files = [Path(f"/proc/{pid}/stat").read_text() for pid in run.processes]
    return len(files), {text.rpartition(")")[2].split()[0] for text in files}

def read():
    return Path("read").stat().st_size

if __name__ == "__main__":
    strategy, processes, *more = sys.argv[1:]
    rows = "{_target_: stopped.Rows}"
    job = ours.job(
        f"parallel={strategy}", f"launch.cpu_processes={processes}", "clock.warmup=1",
        "logger=quiet", "dataset=mapped", "dataset.classes=10", f"dataset.train={rows}",
        f"dataset.test={rows}", "loader.workers=2", "batch_size=4", *more,
    )
    forkserver.start(job.resolved)
    folder = Path("run")
    folder.mkdir()
    spec = RunSpec("time", job.text, folder, started=time.time())
    with closing(TurnTaker(spec, int(processes))) as run:
        first = states()
        assert run.turn(Turn("", 1, 2)) > 0
        second = states()
        before = read()
        time.sleep(0.5)
        print(first, second, read() - before, file=sys.stderr)
"""


@pytest.mark.parametrize(
    ("given", "count"),
    [
        (["ddp", "2"], 6),
        pytest.param(["none", "1", "device=cuda"], 3, marks=pytest.mark.gpu),
        pytest.param(["ddp", "1", "device=cuda"], 3, marks=pytest.mark.gpu),
    ],
)
def test_between_turns_all_processes_are_stopped_and_nothing_is_read_ahead(shell, given, count):
    """Otherwise a turn would pay nothing for its data, and threads of OpenMP that wait would spin
    on the cores that another cell computes on.
    """
    (shell.folder / "stopped.py").write_text(STOPPED)
    path = f"{shell.folder}:{ROOT}:{os.environ.get('PYTHONPATH', '')}"
    done = shell.run("stopped.py", *given, forked=True, env={"PYTHONPATH": path})
    assert done.stderr.splitlines() == [f"({count}, {{'T'}}) ({count}, {{'T'}}) 0"]
