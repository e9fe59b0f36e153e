"""The forkserver dies with its launcher, whenever that is killed."""

from __future__ import annotations

import time

from tests.conftest import ROOT, Shell

# Python imports it before anything else: the forkserver takes a while to begin.
LATE = """
import sys, time
if "multiprocessing.forkserver" in " ".join(sys.orig_argv):
    open("begun", "w").close()
    time.sleep(2)
"""
SLOW = "import time; open('imported', 'w').close(); time.sleep(60)"
LAUNCHER = """
import time
from ninefold.launch import forkserver
forkserver.start({"task": {"_target_": "slow.Task"}})
time.sleep(60)
"""


def test_a_launcher_that_is_killed_before_its_forkserver_begins_leaves_none(shell: Shell) -> None:
    (shell.folder / "sitecustomize.py").write_text(LATE)
    (shell.folder / "slow.py").write_text(SLOW)
    path = f"{shell.folder}:{ROOT}"
    process = shell.start("-c", LAUNCHER, env={"PYTHONPATH": path})
    while not (shell.folder / "begun").exists():
        time.sleep(0.01)
        assert process.poll() is None
    shell.kill(process)
    assert not (shell.folder / "imported").exists(), "it went on without its launcher"
