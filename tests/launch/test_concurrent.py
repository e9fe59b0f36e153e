"""Runs that another launcher makes at the same time are told to save when their command ends."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from functools import partial
from pathlib import Path

import pytest

from ninefold.errors import Interrupted
from ninefold.launch import concurrent
from tests.conftest import ROOT

RUN = """
import signal, time
from ninefold.launch import concurrent
def interrupt(number, frame):
    raise KeyboardInterrupt
signal.signal(signal.SIGTERM, interrupt)
with concurrent.registered():
    try:
        print("runs", flush=True)
        time.sleep(10)
    except KeyboardInterrupt:
        time.sleep(0.3)
        print("saved", flush=True)
signal.raise_signal(signal.SIGTERM)
print("there still", flush=True)
"""


def test_runs_in_processes_of_another_launcher_are_signaled_and_waited_for_and_none_begins(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv(concurrent.VARIABLE, "")
    assert concurrent.announced() is None
    concurrent.announce(grace=60)
    sweep = concurrent.announced()
    assert sweep is not None
    start = partial(
        subprocess.Popen, [sys.executable, "-c", RUN], stdout=subprocess.PIPE, text=True, cwd=ROOT
    )
    with start() as run:
        assert run.stdout is not None
        assert run.stdout.readline() == "runs\n"
        names = [path.name for path in sweep.mailbox.iterdir()]
        assert not any(str(run.pid) in name for name in names)  # which means another on other hosts
        assert sweep.stop(signal.SIGINT) == 1
        assert run.communicate()[0] == "saved\nthere still\n"
    with start() as late:  # as a job from a queue
        assert late.communicate()[0] == ""
    assert late.returncode == Interrupted.code


def test_the_folder_in_which_runs_of_other_hosts_register_is_in_that_of_the_sweep(
    tmp_path: Path,
) -> None:
    announce = (
        "from pathlib import Path\n"
        "from ninefold.launch import concurrent\n"
        f"concurrent.announce(1.0, Path({str(tmp_path)!r}))\n"
        "print(concurrent.announced().mailbox.parent)\n"
    )

    def python(code: str) -> str:
        return subprocess.check_output(
            [sys.executable, "-c", code], cwd=ROOT, env=os.environ, text=True
        )

    assert python(announce).strip() == str(tmp_path)
    assert not list(tmp_path.iterdir())
    python(announce + "concurrent.announced().stop(2)\n")
    (left,) = tmp_path.iterdir()  # for jobs that are still in a queue
    assert (left / "stop").read_text() == "2"
