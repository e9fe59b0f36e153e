"""The command that trains with an answer has the words of the study's command, if they may be."""

from __future__ import annotations

import json
import shlex
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from ninefold import report
from ninefold.report.data.retrain_command import of_cells, recorded
from ninefold.report.data.runs import Run
from ninefold.study_record import StudyRecord
from tests.report.test_report import entry, result, sweep

CELLS = [{"parallel": "none", "amp": "fp32"}]
OWN = ["PYTHONPATH=mine", "--config-dir", "mine/conf", "model=mlp", "task.loss={_target_: 'a.B'}"]


def study(folder: Path, words: list[str], **more: Any) -> Path:
    facts = {"planned_cells": CELLS, "words": words, **more}
    return sweep(folder, result(), wall_seconds=9.0, runs=1, **facts)


def train_of(text: str) -> list[str]:
    (line,) = [line for line in text.splitlines() if line.startswith("train with it: ")]
    return shlex.split(line.removeprefix("train with it: "))


def test_the_words_of_a_studys_command_are_those_of_the_one_that_it_prints(tmp_path: Path) -> None:
    shown = report.write(study(tmp_path, OWN), own=True)
    first, python, script, *rest = train_of(shown)
    assert (first, python, Path(script).name) == ("PYTHONPATH=mine", "python", "train.py")
    assert rest == [*OWN[1:], "parallel=none", "amp=fp32"]
    assert shlex.join(rest) in (tmp_path / "report" / "report.md").read_text()
    for folder in (tmp_path, tmp_path / "report"):  # whoever made them
        assert "a.B" not in report.write(folder)


RUNS = [Run(folder="a", status="ok", parallel="none", amp="fp32", study="made_up")]


@pytest.mark.parametrize(
    "words", [OWN, ["model.net._target_=os.system"], ["dataset.root=/etc"], ["hydra.verbose=x"],
              ["a=b; rm x"], ["x='$(rm x)'"], ["logger={x: {_target_: a.B}}"]],
)  # fmt: skip
def test_a_strangers_study_has_nobody_call_what_it_names(words: list[str]) -> None:
    study = StudyRecord(words=words, planned_cells=CELLS)
    assert of_cells(RUNS, study, own=False) == {}
    assert of_cells(RUNS, study, own=True) == {"none-fp32": [*words, "parallel=none", "amp=fp32"]}
    for cells in ({"none-fp32": words}, {"none-fp32": "x"}, {"none-fp32": [7]}, 7):
        assert recorded({"words": {"cells": cells}}, "none-fp32", own=False) == []


def test_plain_words_are_always_repeated_and_the_cells_values_stand_for_an_experiment_of_ours(
    tmp_path: Path,
) -> None:
    words = ["dataset.root=data", "~optimizer.fused", "a=[1,2]", "epochs=4"]
    values = {"epochs": 4, "batch_size": 8, "launch": {"cpu_processes": 2}}
    of_cell = {"choices": {"parallel": "none", "amp": "fp32"}, "values": values}
    folder = study(tmp_path, words, study="ours", overlays={"none-fp32": of_cell})
    shown = train_of(report.write(folder))
    assert shown[2:] == ["parallel=none", "amp=fp32", "batch_size=8", *words]
    sweep = json.loads((folder / "sweep.json").read_text())
    (folder / "sweep.json").write_text(json.dumps({**sweep, "timing_threads": 1}))
    assert train_of(report.write(folder))[-1] == "threads=1"  # as all were timed


def test_folders_are_named_so_that_the_command_works_but_not_published(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    home, away = tmp_path / "home annabel", "/scratch/annabel/x"
    here = home / "project"
    here.mkdir(parents=True)
    monkeypatch.setenv("HOME", str(home))
    monkeypatch.chdir(here)
    words = ["--config-dir", f"{here}/conf", f"dataset.root={home}/data", f"init={here}/a.pt"]
    folder = study(here / "s", words)
    typed = train_of(report.write(folder, own=True))
    assert typed[2:-2] == words
    told = (folder / "report" / "report.md").read_text()
    train = '--config-dir conf dataset.root="$HOME"/data init=a.pt parallel=none amp=fp32'
    assert train in told
    assert "publish" not in told
    words = [f"dataset.root={away}/y"]
    folder = study(here / "t", words)
    shown = report.write(folder, own=True)
    assert train_of(shown)[2] == words[0]
    assert "leaves out folders" not in shown
    for path in folder.glob("report/*.*"):
        assert b"annabel" not in path.read_bytes(), path
    assert "leaves out folders" in (folder / "report" / "report.md").read_text()


def test_what_makes_an_answer_surer_has_its_folders_on_the_console_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    facts: dict[str, Any] = {
        "rounds": [entry(0, ["runs/0_none_fp32"])], "planned_rounds": 2, "planned_cells": CELLS,
        "command": "python train.py -m dataset.root=/scratch/annabel/y seed=0,1",
    }  # fmt: skip
    folder = sweep(tmp_path / "s", result(), **facts)
    assert f"to be surer: {facts['command']} study.resume=s" in report.write(folder, own=True)
    told = (folder / "report" / "report.md").read_text()
    assert "`python train.py -m dataset.root=DATASET_ROOT seed=0,1 study.resume=s`" in told
    assert "Put your own path in place of DATASET_ROOT." in told


def test_words_of_a_swept_key_are_the_answers() -> None:
    cells = [{"parallel": "none", "amp": "fp32", "optimizer.lr": "0.2"}]
    study = StudyRecord(
        words=["model=mlp", "optimizer.lr=0.1"], planned_cells=cells,
        swept={"optimizer.lr": ["0.2", "0.4"]},
    )  # fmt: skip
    runs = [replace(RUNS[0], overrides=["optimizer.lr=0.2"])]
    found = of_cells(runs, study, own=False)["none-fp32"]
    assert found == ["model=mlp", "parallel=none", "amp=fp32", "optimizer.lr=0.2"]
