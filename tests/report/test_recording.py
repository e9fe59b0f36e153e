"""A recording rebuilds from its recorded files alone."""

import csv
import json
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from ninefold import report
from ninefold.answer import numerics
from ninefold.report.__main__ import main
from ninefold.report.data.recording import read_recording
from ninefold.report.data.runs import row_of, run_of, run_of_result
from ninefold.report.folder import DERIVED
from ninefold.result import NUMERICS, Result
from tests.report.made import recorded, result, sweep, table_of

ROOT = Path(__file__).parents[2]
FACTS = {"wall_seconds": 9.0, "runs": 1}


def alone(folder: Path) -> Path:
    """A copy of the package without conf/ and experiments/."""
    shutil.copytree(ROOT / "ninefold", folder / "ninefold")
    return folder


def rebuild(recording: Path, package: Path) -> dict[str, bytes]:
    """The files of a recording's report, rebuilt with the code in another folder."""
    subprocess.run(
        [sys.executable, "-m", "ninefold.report", str(recording)],
        cwd=recording.parent,
        env={**os.environ, "PYTHONPATH": str(package), "PYTHONSAFEPATH": "1"},
        check=True,
        capture_output=True,
    )
    return {str(path): path.read_bytes() for path in sorted(recording.rglob("*.*"))}


ODD: dict[str, Any] = {
    "sweep": 7,
    "devices": {"a": 1},
    "sweep.rounds": [{"runs": [{"first": []}]}],
    "devices.0": [[]],
}


@pytest.mark.parametrize("place", ODD)
def test_a_recording_with_a_value_of_another_kind_is_no_bug(place, tmp_path, capsys):
    folder = sweep(tmp_path / "sweep", result(), question="which is faster?", **FACTS)
    report.write(folder)
    path = folder / "report" / "environment.json"
    content = json.loads(path.read_text())
    *above, last = place.split(".")
    tree = content
    for key in above:
        tree = tree[key]
    tree[int(last) if last.isdigit() else last] = ODD[place]
    path.write_text(json.dumps(content))
    code = main([str(folder / "report")])
    said = capsys.readouterr().err
    assert "report it)" not in said
    assert "ninefold=bug" not in said
    assert (code, said.count("\n")) in ((0, 0), (2, 1)), said


@pytest.mark.parametrize("name", ["runs.csv", "numerics.csv"])
@pytest.mark.parametrize("what", ["huge", "a long line", "many rows"])
def test_a_table_without_end_is_one_line(tmp_path, capsys, name, what):
    folder = sweep(tmp_path / "sweep", result(), **FACTS)
    report.write(folder)
    with (folder / "report" / name).open("ab") as file:
        if what == "huge":
            file.truncate(1 << 40)
        else:
            file.write(b"a\n" + b"x" * 2_000_000 if what == "a long line" else b"a\n" * 100_001)
    began = time.monotonic()
    code = main([str(folder / "report")])
    assert time.monotonic() - began < 20
    said = capsys.readouterr().err
    assert (code, said.count("\n")) == (2, 1), said


def test_a_pipe_among_the_first_steps_of_runs_is_not_waited_for(tmp_path):
    folder = sweep(tmp_path / "sweep", result(), **FACTS)
    run = next(folder.rglob("result.json")).parent
    os.mkfifo(run / NUMERICS)
    with pytest.raises(OSError, match="it is a FIFO"):
        numerics.read(run / NUMERICS)
    report.write(folder)


def test_a_recording_rebuilds_to_the_same_files_without_conf_and_experiments(tmp_path):
    folder = sweep(tmp_path / "sweep", result(), question="which is faster?", **FACTS)
    report.write(folder)
    recording = (folder / "report").rename(tmp_path / "recording")
    whole = rebuild(recording, ROOT)
    assert b"Which is faster?" in whole[str(recording / "report.md")]
    for path in recording.rglob("*.*"):
        if path.name in DERIVED:
            path.unlink()
    assert rebuild(recording, alone(tmp_path / "code")) == whole


def test_a_run_of_very_many_epochs_comes_back_from_its_recording(tmp_path):
    epochs = [1 / 3] * 10_000
    [run] = recorded(sweep(tmp_path, result(epoch_seconds=epochs))).runs
    assert run.epoch_seconds == epochs


RECORDED = [path.parent for path in sorted((ROOT / "experiments").glob("*/*/runs.csv"))]


@pytest.mark.parametrize("recording", RECORDED, ids=lambda path: "/".join(path.parts[-2:]))
def test_the_text_of_each_recording_follows_from_its_recorded_files(recording):
    text = (recording / "report.md").read_text(encoding="utf-8")
    assert table_of(read_recording(recording)) == text


def test_a_run_is_a_result_and_comes_back_from_its_row():
    turns = {"turns": 2, "turn_seconds": [0.5, 0.75], "turn_others": [0.0, 0.25]}
    run = run_of(row_of(result(compile_seconds=1.5, round=1, **turns) | {"folder": "a"}))
    assert isinstance(run, Result)
    assert (run.folder, run.round, run.compile_seconds) == ("a", 1, 1.5)
    assert run.phase_seconds["backward"] == 4.0
    assert [(turn.seconds, turn.steps, turn.others) for turn in run.taken] == [
        (0.5, 110, 0.0), (0.75, 110, 0.25)
    ]  # fmt: skip
    assert run_of(row_of(vars(run))) == run


def test_a_run_that_an_earlier_version_recorded_is_refused_in_one_line(tmp_path, capsys):
    older = {key: value for key, value in result().items() if key != "no_op"}
    said = "an earlier version of ninefold wrote it, whose files are not read"
    run = run_of_result({**older, "folder": "a"})
    assert (run.status, run.error) == ("unreadable", said)
    folder = sweep(tmp_path / "sweep", result(), **FACTS)
    report.write(folder)
    path = folder / "report" / "runs.csv"
    with path.open(newline="") as file:
        rows = list(csv.DictReader(file))
    with path.open("w", newline="") as file:
        table = csv.DictWriter(file, [n for n in rows[0] if n != "no_op"], extrasaction="ignore")
        table.writeheader()
        table.writerows(rows)
    capsys.readouterr()
    assert main([str(folder / "report")]) == 2
    line = capsys.readouterr().err
    assert line.startswith(f"error: runs.csv={path}: row 1: {said}; ")
    assert line.count("\n") == 1
