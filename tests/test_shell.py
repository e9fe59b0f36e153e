"""The fixture `shell`: what it does with a command that does not end."""

from __future__ import annotations

import pytest

from tests.conftest import ROOT, Shell

STUCK = """
import subprocess, sys, time
print("here", flush=True)
subprocess.run([sys.executable, "-c", "import time; time.sleep(600)"])
"""


@pytest.mark.parametrize(
    ("command", "said"),
    [(["-c", STUCK], "here"), ([str(ROOT / "train.py"), "epochs=100000"], "")],
    ids=["new", "forked"],
)
def test_a_command_that_does_not_end_in_time_is_killed_with_all_it_started_and_told(
    shell: Shell, command: list[str], said: str
) -> None:
    shell.seconds = 4
    with pytest.raises(pytest.fail.Exception, match=f"did not end in 4 s:\n{said}"):
        shell.run(*command)
    assert not shell.survivors()
