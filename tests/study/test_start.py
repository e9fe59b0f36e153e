"""A study begins in an empty folder and is resumed only as the same study."""

import json
from typing import Any

import pytest

from ninefold.config.composition import compose, flags_of
from ninefold.errors import ConfigError
from ninefold.study import checks
from ninefold.study.record import StudyFolder

write = StudyFolder.write


@pytest.mark.parametrize(
    ("commands", "looks"),
    [
        ([(2, 0), (2, 0)], 1),  # the second makes no run
        ([(1, None), (2, None), (2, None)], 1),  # one seed has no verdict
        ([(2, None), (3, None), (3, None)], 2),
        ([(2, 0), (2, None)], 1),  # its budget ended the first in its first round
    ],
)
def test_runs_that_are_made_after_scores_were_shown_are_for_another_look(made, commands, looks):
    for number, (seeds, budget) in enumerate(commands):
        made.study(seeds=range(seeds), budget=budget, resume=number > 0).run()
    assert made.file()["looks"] == looks


def test_a_study_that_was_killed_while_it_ran_has_shown_nothing(made, monkeypatch):
    monkeypatch.setattr(StudyFolder, "write", lambda recording: recording.shown or write(recording))
    made.study(seeds=range(2)).run()
    monkeypatch.undo()
    made.study(seeds=range(3), resume=True).run()
    assert made.file()["looks"] == 1


def test_a_study_cannot_be_resumed_with_another_configuration(made):
    made.study().run()
    before = made.file()
    others: list[tuple[list[str], dict[str, Any], str]] = [
        (["epochs=3"], {}, r"epochs=3 \(was 10\) cannot change in a study"),
        ([], {"seeds": [4, 1]}, r"seed=4 \(was 0\)"),
    ]
    for overrides, given, wrong in others:
        with pytest.raises(ConfigError, match=wrong):
            made.study(*overrides, resume=True, **given)
    made.study("checkpoint.keep=5", "logger=quiet", resume=True, budget=9)  # bear on no figure
    assert made.file() == before


def test_other_code_launcher_or_machine_is_refused(made):
    made.statuses = ["ok"] * 4 + ["killed"]
    with pytest.raises(KeyboardInterrupt):
        made.study(seeds=range(3)).run()
    whole = (made.folder / "sweep.json").read_text()
    for key in ("code", "launcher", "torch"):
        content = json.loads(whole)
        before = content["made_with"]
        (before if key in before else before["machine"])[key] = "1.0"
        (made.folder / "sweep.json").write_text(json.dumps(content))
        with pytest.raises(ConfigError, match=f"{key}.*changed since"):
            made.study(seeds=range(3), resume=True)
        assert made.file() == content


def test_a_folder_that_holds_a_study_takes_no_other(made):
    made.study().run()
    with pytest.raises(ConfigError, match="a sweep has been run into it"):
        made.study()


def test_a_folder_that_holds_a_sweep_takes_none_of_another_sweeper(made):
    made.study(budget=0).run()
    before, names = (made.folder / "sweep.json").read_bytes(), {*made.folder.iterdir()}
    given = ["-m", "hydra/sweeper=basic", f"hydra.sweep.dir={made.folder}"]
    (failure,) = checks.of_a_sweep(compose("train", flags_of(given)))
    assert "a sweep has been run into it" in str(failure)
    assert {*made.folder.iterdir()} == names
    assert (made.folder / "sweep.json").read_bytes() == before


def test_another_number_of_visible_gpus_is_another_machine(made, monkeypatch):
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    made.study(budget=0).run()
    made.study(resume=True)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0,1")
    with pytest.raises(ConfigError, match=r"visible=2 \(was null\) changed since"):
        made.study(resume=True)
    content = made.file()
    content["made_with"]["machine"]["visible"] = 2
    (made.folder / "sweep.json").write_text(json.dumps(content))
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "5,1")
    made.study(resume=True)
    for none in ("", "-1"):
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", none)
        with pytest.raises(ConfigError, match=r"visible=0 \(was 2\) changed since"):
            made.study(resume=True)


def test_a_study_hashes_the_targets_of_its_cells(made):
    targets = made.plan("+optimizer.more._target_=my_code.Adam").targets()
    assert {"ninefold.engine.parallel.ddp.DDP", "my_code.Adam"} <= targets
