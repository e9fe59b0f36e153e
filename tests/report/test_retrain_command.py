"""The command that trains with an answer is like its study, and says no more than it may."""

import re
import shlex
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from ninefold import report
from ninefold.answer.cell import Cell
from ninefold.answer.runs import Run
from ninefold.report.data.retrain_command import words_of
from ninefold.study_record import StudyRecord
from tests.report.made import entry, result, sweep

CELLS = [{"parallel": "none", "amp": "fp32"}]
WORDS = ["parallel=none", "amp=fp32"]
CELL = Cell("none", "fp32")
RUNS = [Run(folder="a", status="ok", parallel="none", amp="fp32", study="made_up")]


def study(folder: Path, **more: Any) -> Path:
    return sweep(folder, result(), wall_seconds=9.0, runs=1, planned_cells=CELLS, **more)


def train_of(written: report.Written) -> list[str]:
    (line,) = re.findall("^train with it: .*$", written.text, re.MULTILINE)
    return shlex.split(line.removeprefix("train with it: "))


def test_the_command_names_the_study_and_in_a_moved_report_the_words_alone(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    folder = study(tmp_path / "a study")
    assert train_of(report.write(Path("a study")))[2:] == ["like='a study'", *WORDS]
    assert (
        "python train.py 'like='\"'\"'a study'\"'\"''" in (folder / "report/report.md").read_text()
    )
    (folder / "report").rename(tmp_path / "published")
    assert train_of(report.write(Path("published"))) == WORDS


def test_the_folder_of_a_study_elsewhere_is_on_the_console_alone(tmp_path, monkeypatch):
    folder = study(tmp_path / "annabel")
    assert train_of(report.write(folder))[2:] == [f"like={folder}", *WORDS]
    told = (folder / "report" / "report.md").read_text()
    assert "annabel" not in told
    assert "`parallel=none amp=fp32`" in told or "\nparallel=none amp=fp32\n" in told


def test_only_the_command_that_made_a_study_says_that_it_is_trusted(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PYTHONPATH", "mine")
    study(tmp_path / "s", trust=True)
    shown = train_of(report.write(Path("s"), own=True))
    assert shown[0] == f"PYTHONPATH={tmp_path}/mine"
    assert shown[3:] == ["like=s", *WORDS, "trust=true"]
    assert train_of(report.write(Path("s")))[2:] == ["like=s", *WORDS]


@pytest.mark.parametrize(
    "word",
    ["model.net._target_=os.system", "dataset.root=/etc", "hydra.verbose=x", "a=b; rm x",
     "x='$(rm x)'", "logger={x: {_target_: a.B}}"],
)  # fmt: skip
def test_a_strangers_study_has_nobody_call_what_it_names(word):
    key, _, value = word.partition("=")
    record = StudyRecord(planned_cells=[{**CELLS[0], key: value}], swept={key: [value, "other"]})
    runs = [replace(RUNS[0], overrides=[word])]
    assert words_of(runs, CELL, record, own=False) is None
    assert words_of(runs, CELL, record, own=True) == [*WORDS, word]


def test_the_value_of_a_swept_key_is_the_answers():
    cells = [{"parallel": "none", "amp": "fp32", "optimizer.lr": "0.2"}]
    record = StudyRecord(planned_cells=cells, swept={"optimizer.lr": ["0.2", "0.4"]})
    runs = [replace(RUNS[0], overrides=["optimizer.lr=0.2"])]
    assert words_of(runs, CELL, record, own=False) == [*WORDS, "optimizer.lr=0.2"]


def test_a_swept_folder_is_in_the_words_of_the_command_that_made_the_study():
    def record(*folders: str) -> StudyRecord:
        cells = [{**CELLS[0], "init": folder} for folder in folders]
        return StudyRecord(planned_cells=cells, swept={"init": [*folders]})

    runs = [replace(RUNS[0], overrides=["init=.../w.pt"])]
    recorded, typed = record(".../w.pt", ".../v.pt"), record("/data/w.pt", "/data/v.pt")
    assert words_of(runs, CELL, recorded, True, typed) == [*WORDS, "init=/data/w.pt"]


def test_with_weak_scaling_the_batch_is_that_of_all_processes():
    cells = [{"parallel": "ddp", "amp": "fp32", "parallel.processes": "2"}]
    swept = {"parallel.processes": ["1", "2"]}
    settings = {"study": {"scaling": "weak"}}
    record = StudyRecord(planned_cells=cells, swept=swept, settings=settings)
    run = replace(RUNS[0], parallel="ddp", processes=2, scaling="weak", batch_size=32)
    found = words_of([run], Cell("ddp", "fp32", 2), record, own=False)
    assert found == ["parallel=ddp", "amp=fp32", "parallel.processes=2", "batch_size=32"]


def test_what_makes_an_answer_surer_has_its_folders_on_the_console_alone(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    facts: dict[str, Any] = {
        "rounds": [entry(0, ["runs/0_none_fp32", "runs/1_ddp_fp32"])], "planned_rounds": 2,
        "planned_cells": [*CELLS, {"parallel": "ddp", "amp": "fp32"}],
        "command": "python train.py -m dataset.root=/scratch/annabel/y seed=0,1",
    }  # fmt: skip
    folder = sweep(tmp_path / "s", result(), result("ddp"), **facts)
    assert "to be surer: python train.py study.resume=s" in report.write(folder, own=True).text
