"""The command that trains with an answer has the words of the study's command, if they may be."""

from __future__ import annotations

import json
import shlex
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from ninefold import report
from ninefold.config import own
from ninefold.report.data.runs import Run
from ninefold.report.data.words import of_cells, recorded
from ninefold.study_record import StudyRecord
from tests.report.test_report import result, sweep

CELLS = [{"parallel": "none", "amp": "fp32"}]
OWN = ["PYTHONPATH=mine", "--config-dir", "mine/conf", "model=mlp", "task.loss={_target_: 'a.B'}"]


def study(folder: Path, words: list[str], signature: str | None, **more: Any) -> Path:
    facts = {"planned_cells": CELLS, "words": words, "signature": signature, **more}
    return sweep(folder, result(), wall_seconds=9.0, runs=1, **facts)


def signed(words: list[str]) -> str | None:
    return own.signature_of(json.dumps(words))


def train_of(text: str) -> list[str]:
    (line,) = [line for line in text.splitlines() if line.startswith("train with it: ")]
    return shlex.split(line.removeprefix("train with it: "))


def test_the_words_that_a_user_signed_are_those_of_the_command_with_the_answers(
    tmp_path: Path,
) -> None:
    shown = report.write(study(tmp_path, OWN, signed(OWN)))
    first, python, script, *rest = train_of(shown)
    assert (first, python, Path(script).name) == ("PYTHONPATH=mine", "python", "train.py")
    assert rest == [*OWN[1:], "parallel=none", "amp=fp32"]
    assert shlex.join(rest) in (tmp_path / "report" / "report.md").read_text()
    again = train_of(report.write(tmp_path / "report"))  # of the recording alone
    assert again == [first, python, "train.py", *rest]


RUNS = [Run(folder="a", status="ok", parallel="none", amp="fp32", study="made_up")]


@pytest.mark.parametrize("of", [None, "nothing", "other words"])
@pytest.mark.parametrize(
    "words", [OWN, ["model.net._target_=os.system"], ["dataset.root=/etc"], ["hydra.verbose=x"],
              ["a=b; rm x"], ["x='$(rm x)'"], ["logger={x: {_target_: a.B}}"]],
)  # fmt: skip
def test_a_strangers_study_has_nobody_call_what_it_names(words: list[str], of: str | None) -> None:
    forged = {None: None, "nothing": "0" * 64}.get(of, signed(["model=mlp"]))
    study = StudyRecord(words=words, signature=forged, planned_cells=CELLS)
    assert of_cells(RUNS, study) == {}
    study.signature = signed(words)
    assert of_cells(RUNS, study) == {"none-fp32": [*words, "parallel=none", "amp=fp32"]}
    for cells in ({"none-fp32": words}, {"none-fp32": "x"}, {"none-fp32": [7]}, 7):
        environment = {"words": {"cells": cells, "signature": forged}}
        assert recorded(environment, "none-fp32") == []


def test_words_that_choose_options_and_set_plain_values_need_no_signature(tmp_path: Path) -> None:
    words = ["experiments=recommended", "dataset.root=data", "~optimizer.fused", "a=[1,2]"]
    folder = study(tmp_path, words, None)
    shown = train_of(report.write(folder))
    assert shown[2:] == ["--config-dir", f"{folder}/report", *words]


def test_folders_are_named_so_that_the_command_works_but_not_published(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    home, away = tmp_path / "home annabel", "/scratch/annabel/x"
    here = home / "project"
    here.mkdir(parents=True)
    monkeypatch.setenv("HOME", str(home))
    monkeypatch.chdir(here)
    words = ["--config-dir", f"{here}/conf", f"dataset.root={home}/data", f"init={here}/a.pt"]
    folder = study(here / "s", words, signed(words))
    typed = train_of(report.write(folder))
    assert typed[2:-2] == words
    told = (folder / "report" / "report.md").read_text()
    train = '--config-dir conf dataset.root="$HOME"/data init=a.pt parallel=none amp=fp32'
    assert train in told
    assert "publish" not in told
    words = [f"dataset.root={away}/y"]
    folder = study(here / "t", words, signed(words))
    shown = report.write(folder)
    assert train_of(shown)[2] == words[0]
    assert "leaves out folders" not in shown
    for path in folder.glob("report/*.*"):
        assert b"annabel" not in path.read_bytes(), path
    assert "leaves out folders" in (folder / "report" / "report.md").read_text()


def test_words_of_a_swept_key_are_the_answers() -> None:
    cells = [{"parallel": "none", "amp": "fp32", "optimizer.lr": "0.2"}]
    study = StudyRecord(
        words=["model=mlp", "optimizer.lr=0.1"], planned_cells=cells,
        swept={"optimizer.lr": ["0.2", "0.4"]},
    )  # fmt: skip
    runs = [replace(RUNS[0], overrides=["optimizer.lr=0.2"])]
    found = of_cells(runs, study)["none-fp32"]
    assert found == ["model=mlp", "parallel=none", "amp=fp32", "optimizer.lr=0.2"]
