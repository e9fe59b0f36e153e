"""A study runs all that is planned, and when resumed only what is missing."""

from __future__ import annotations

import json
import signal
from pathlib import Path

import pytest

from tests.conftest import Shell, result
from tests.faults.runs import RUN, fired, last_step, one_after_another, state_hash
from tests.study.conftest import Sweep


def test_a_resumed_study_keeps_finished_runs_and_makes_the_missing_ones(
    made: Sweep,
) -> None:
    made.statuses = ["ok", "failed", "diverged", "preempted", "killed"]
    with pytest.raises(KeyboardInterrupt):
        made.study(seeds=range(3)).run()
    failed, saved, killed = made.names[1], made.names[3], made.names[4]
    before, made.names = made.names, []
    checkpoints = made.folder / saved / "checkpoints"
    checkpoints.mkdir()
    entry = {"sha256": "0" * 64, "size": 1, "step": 1}
    (checkpoints / "manifest.json").write_text(
        json.dumps({"format": 2, "files": {"last.pt": [entry]}})
    )
    made.study(seeds=range(3), resume=True).run()
    assert made.names[:3] == [failed, saved, killed]
    assert made.resumed == [saved]
    assert made.file()["superseded"] == [
        f"superseded/{name}.1" for name in sorted([failed, killed])
    ]
    assert [name for (runs,) in made.rounds("runs") for name in runs][:5] == before
    assert sorted(int(name.split("_")[0]) for name in {*before, *made.names}) == list(range(9))


def test_a_resumed_study_looks_after_the_same_rounds_as_planned(
    made: Sweep, monkeypatch: pytest.MonkeyPatch
) -> None:
    looked = []

    def settled(folder: Path) -> bool:
        looked.append(len(made.file()["rounds"]))
        return False

    monkeypatch.setattr("ninefold.study.runner._settled", settled)
    for runs in (10, 6):  # in the fourth round, and in the sixth
        made.statuses = ["ok"] * runs + ["killed"]
        with pytest.raises(KeyboardInterrupt):
            made.study(seeds=[0], repeats="auto", resume=runs == 6).run()
    assert looked == [3, 5]


def test_a_study_that_is_killed_and_resumed_equals_one_that_was_not(shell: Shell) -> None:
    study = ["-m", *RUN, "amp=fp32", "seed=0,1,2", "launch.inline=true", "threads=1"]
    mark = shell.folder / "mark"
    kill = {"FAULT": "kill_rank0@step:0:11", "FAULT_MARK": str(mark)}
    assert shell.train(*study, "hydra.sweep.dir=cut", env=kill).returncode == -signal.SIGKILL
    assert fired(mark) == 1
    assert last_step(shell.folder / "cut" / "0_none_fp32_seed0") > 0
    ends = (f"study.resume=../{shell.folder.name}/cut", "hydra.sweep.dir=whole")
    for done in one_after_another(shell, *(["train.py", *study, end] for end in ends)):
        assert done.returncode == 0, done.stderr
    assert not (shell.folder / "cut" / "superseded").exists()
    whole, cut = (sorted((shell.folder / name).glob("[0-9]*")) for name in ("whole", "cut"))
    assert [run.name for run in cut] == [run.name for run in whole]
    for one, other in zip(whole, cut, strict=True):
        assert state_hash(one) == state_hash(other), one.name
        for key in ("status", "accuracy", "best_accuracy", "test_loss", "steps", "seed", "amp"):
            assert result(one)[key] == result(other)[key], (one.name, key)
