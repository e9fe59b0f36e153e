"""`ninefold.time_steps` in the processes of a torchrun."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.conftest import ROOT


@pytest.mark.slow
def test_ranks_take_the_same_turns_a_turn_is_the_slowest_ranks_and_rank_0_prints(
    tmp_path: Path,
) -> None:
    run = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    done = subprocess.run(
        [sys.executable, *run, "-m", "tests.api.ranks", str(tmp_path)],
        cwd=ROOT, capture_output=True, text=True, check=False, timeout=240,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    first, second = (json.loads((tmp_path / f"{rank}.json").read_text()) for rank in (0, 1))
    assert first["taken"] == second["taken"]
    assert first["rows"] == second["rows"]
    assert first["seconds"]["quick"] >= 0.01
    assert first["seconds"]["slow"] >= 0.03
    assert first["busy"] == second["busy"]
    assert done.stdout.count("rocess") == 1  # the sentence
    for seen in (first, second):
        assert seen["refused"].startswith("error: steps=a, b")
