"""A command as a whole: what it does with its output and its arguments."""

from __future__ import annotations

import os
import signal

import pytest

from tests.conftest import ROOT, Shell


@pytest.mark.parametrize("arguments", [["--cfg", "job"], ["--help"]], ids=["cfg", "help"])
def test_a_command_whose_output_is_closed_ends_quietly_as_cat_does(
    shell: Shell, arguments: list[str]
) -> None:
    reader, writer = os.pipe()
    os.close(reader)
    process = shell.start(str(ROOT / "train.py"), *arguments, stdout=writer)
    os.close(writer)
    assert process.communicate(timeout=60)[1] == ""
    assert process.returncode == 128 + signal.SIGPIPE
