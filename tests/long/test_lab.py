"""What bench, studies and `--try` say of scripts whose truth is known; see tests/long/lab."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from ninefold.places import ROOT

pytestmark = pytest.mark.slow
SHAPES = json.loads((Path(__file__).parent / "lab" / "cases.json").read_text())


@pytest.mark.parametrize("shape", SHAPES)
def test_what_is_told_of_a_known_truth_holds_as_often_as_is_said(shape: str) -> None:
    argv = [sys.executable, "-m", "tests.long.lab", shape, "--studies", "60"]
    done = subprocess.run(argv, cwd=ROOT, capture_output=True, text=True, check=False)
    print(done.stdout)
    assert done.returncode == 0, done.stderr
