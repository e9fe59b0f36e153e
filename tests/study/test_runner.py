"""A study runs all that is planned, and when resumed only what is missing."""

import json
import re
from contextlib import suppress
from pathlib import Path

import pytest


def test_a_resumed_study_keeps_finished_runs_and_makes_the_missing_ones(made):
    made.statuses = ["ok", "failed", "diverged", "preempted", "killed"]
    with pytest.raises(KeyboardInterrupt):
        made.study(seeds=range(3)).run()
    failed, saved, killed = made.names[1], made.names[3], made.names[4]
    before, made.names = made.names, []
    save(made.folder / saved)
    save(made.folder / killed, named=False)
    made.study(seeds=range(3), resume=True).run()
    assert made.names[:3] == [failed, saved, killed]
    assert made.resumed == [saved]
    assert superseded(made.folder) == {f"{failed}.1", f"{killed}.1"}
    assert [name for (runs,) in made.rounds("runs") for name in runs][:5] == before
    assert sorted(int(name.split("_")[0]) for name in {*before, *made.names}) == list(range(9))


def superseded(folder: Path) -> set[str]:
    return {path.name for path in folder.glob("superseded/*")}


def save(run: Path, named: bool = True) -> None:
    """Make a checkpoint of a run; not `named`: as a kill in its first save leaves one."""
    entry = {"sha256": "0" * 64, "size": 1, "step": 1}
    (run / "checkpoints").mkdir()
    text = json.dumps({"format": 2, "files": {"last.pt": [entry]}})
    (run / "checkpoints" / "manifest.json").write_text(text)
    if named:
        (run / "checkpoints" / "last.pt").touch()


def test_a_failed_run_goes_on_from_its_checkpoint_and_ends(made):
    made.statuses = ["failed", "ok", "ok"]
    made.study(seeds=[0]).run()
    failed, made.names = made.names[0], []
    save(made.folder / failed)
    for _ in range(2):
        made.study(seeds=[0], resume=True).run()
    assert (made.names, made.resumed) == ([failed], [failed])
    assert superseded(made.folder) == set()


def test_each_round_has_every_cell_once_in_a_random_order(made):
    made.study(seeds=range(6)).run()
    cells = [[name.split("_")[1] for name in runs] for (runs,) in made.rounds("runs")]
    assert all(sorted(names) == ["ddp", "dp", "none"] for names in cells)
    assert len({tuple(names) for names in cells}) > 2
    assert made.rounds("round", "seed") == [(number, number) for number in range(6)]
    assert [int(name.split("_")[0]) for name in made.names] == list(range(18))


def test_a_sweep_without_rounds_keeps_the_order_of_the_command(made):
    made.study(seeds=[3]).run()
    assert made.names == ["0_none_fp32_seed3", "1_dp_fp32_seed3", "2_ddp_fp32_seed3"]


def test_no_round_is_begun_that_would_pass_the_budget(made, capsys):
    study = made.study(seeds=range(5), budget=2.9)  # a round is said to take three minutes
    study.run()
    assert len(made.file()["rounds"]) == 1
    before, _, after = capsys.readouterr().out.partition("run 1 of ")
    assert "study.budget=2.9: one seed of 3 configurations, then 4 more if they fit " in before
    assert re.findall(r"run (\d of \d+)", after) == ["2 of 3", "3 of 3"]
    assert "seeds 1, 2, 3, 4 were not run" in after
    assert not study.finished


def test_a_round_that_is_no_longer_planned_is_left_unchanged(made):
    made.statuses = ["ok"] * 7 + ["killed"]
    with suppress(KeyboardInterrupt):
        made.study(seeds=[0], rounds=3).run()
    made.names = []
    made.study(seeds=[0], rounds=2, resume=True).run()
    assert made.names == []
    assert len(made.file()["rounds"]) == 3


def test_a_finished_study_has_nothing_to_resume(made):
    made.study().run()
    before, made.names = made.file(), []
    made.study(resume=True).run()
    assert made.names == []
    assert made.file()["rounds"] == before["rounds"]
