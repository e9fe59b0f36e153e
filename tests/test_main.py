"""A command as a whole: what it keeps of its runs, and a study that has nothing left to do."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from ninefold.errors import NumericsError
from ninefold.launch import Outcome
from ninefold.launch.runs import Runs
from tests.conftest import Shell


def test_a_command_does_not_keep_the_failures_of_its_runs_and_so_their_models(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    runs = Runs([])
    runs.keep(Outcome(6, (NumericsError("loss", "nan", "a; b; c"),)), tmp_path)
    assert runs.outcomes == [Outcome(6)]
    assert "error: loss=nan" in capsys.readouterr().err


@pytest.mark.slow
def test_a_study_that_is_resumed_with_nothing_left_to_run_writes_its_report(shell: Shell) -> None:
    sweep = ["-m", "amp=fp32", "seed=0,1", "max_steps=2", "logger=quiet"]
    assert shell.train(*sweep, "hydra.sweep.dir=study").returncode == 0
    report = shell.folder / "study" / "report"
    shutil.rmtree(report)
    shell.train(*sweep, "study.resume=study", code=0)
    assert (report / "report.html").exists()
