"""Workers that do not exit after a peer has failed are killed."""

from __future__ import annotations

import time

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
