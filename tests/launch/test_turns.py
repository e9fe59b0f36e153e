"""Runs that take turns: processes that do not get as far as their first turn."""

from __future__ import annotations

from pathlib import Path

import pytest

from ninefold.config.spec import RunSpec
from ninefold.errors import PeerError
from ninefold.launch import turns
from tests.conftest import ROOT, Shell


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
