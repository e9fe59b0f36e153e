"""Facts are the same whether they come from what a study has seen itself, or from its recording."""

from __future__ import annotations

from dataclasses import fields, replace
from pathlib import Path

import pytest

from ninefold.answer.gather import facts_of_study
from ninefold.answer.rounds import runs_of
from ninefold.report.data.recording import read_recording
from ninefold.result import Result
from tests.conftest import ROOT, Shell
from tests.study.test_timing import study

RECORDINGS = sorted(path.parent for path in ROOT.glob("experiments/*/*/runs.csv"))
OF_RESULT = [each.name for each in fields(Result)]
KEPT = ("settings", "timings", "safe", "copies", "measured_with", "failed", "scores")
COMPARED = ("seconds", "score", "safety", "control", "floor")


def test_there_are_recordings() -> None:
    assert len(RECORDINGS) > 5


@pytest.mark.parametrize("folder", RECORDINGS, ids=lambda path: path.parent.name)
def test_facts_of_a_log_are_those_of_its_recording(folder: Path) -> None:
    recorded = read_recording(folder)
    counted = [run for run in recorded.runs if run.counts]
    results = {
        run.folder: Result(**{name: getattr(run, name) for name in OF_RESULT}) for run in counted
    }
    turns = {run.folder: [replace(turn, left_out=None) for turn in run.taken] for run in counted}
    runs = runs_of(results, turns, recorded.sweep)
    live = facts_of_study(runs, recorded.sweep)
    for own, other in zip(live, recorded.facts, strict=True):
        for name in KEPT:
            assert getattr(own, name) == getattr(other, name), name
        for name in COMPARED:
            assert getattr(own.comparison, name) == getattr(other.comparison, name), name


WATCHED = """
import sys
from dataclasses import replace
from pathlib import Path
from ninefold import main, report
from ninefold.answer import study
look = study.look_at

def checked(runs, sweep, pairs):
    read, recorded = report.read_runs(sweep.folder)
    assert look(read, recorded, pairs) == look(runs, sweep, pairs)
    of = [{run.folder: [(t.seconds, t.begin, t.end, t.others, t.left_out) for t in run.taken]
           for run in each} for each in (read, runs)]
    assert of[0] == of[1] and any(of[0].values())
    print("the same")
    return look(runs, sweep, pairs)

study.look_at = checked
if __name__ == "__main__":
    main.main("train")
"""


def test_a_study_looks_at_its_own_log_as_at_its_folder(shell: Shell) -> None:
    (shell.folder / "watched.py").write_text(WATCHED)
    words = study("amp=fp32,autocast", "model=mlp", "dataset=digits", "study.time_budget=0.2")
    done = shell.run("watched.py", *words, code=0)
    assert "the same" in done.stdout
