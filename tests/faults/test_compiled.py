"""Compiled runs at length: all nine cells, and the compiler at work when a run ends."""

import os
import signal
from functools import partial
from pathlib import Path

import pytest

from tests.conftest import ROOT, result, wait_until


def compiles(cache: Path) -> bool:
    return any(name.endswith(".main.cpp") for _, _, names in os.walk(cache) for name in names)


@pytest.mark.slow
def test_ctrl_c_while_compiling_saves_and_a_kill_leaves_no_process_for_long(shell, tmp_path):
    for number, end in enumerate((signal.SIGINT, signal.SIGKILL)):
        cache = tmp_path / f"cache{number}"
        process = shell.start(
            str(ROOT / "train.py"), "compile=true", "epochs=1", "logger=quiet",
            f"hydra.run.dir=run{number}", "launch.grace=200",  # a busy machine compiles that long
            env={"TORCHINDUCTOR_CACHE_DIR": str(cache)},
        )  # fmt: skip
        wait_until(partial(compiles, cache), process)
        if end == signal.SIGKILL:
            process.kill()
        else:
            os.killpg(process.pid, end)
        _, said = process.communicate(timeout=240)
        assert not shell.survivors(20)  # of a killed run a compiler finishes its file
        if end == signal.SIGINT:
            assert process.returncode == 130
            assert "error: signal=SIGINT: the run was stopped; it is saved at step 1 in" in said
            shell.train(f"resume={tmp_path / 'run0'}", "compile=true", code=0)
            assert result(tmp_path / "run0")["steps"] == 22
