"""The gate: when a recording is slower than one before it, and when it is not."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import pytest

from ninefold.report import write
from ninefold.report.__main__ import main
from tests.report.test_report import failure, result, sweep


def recording(folder: Path, factor: float = 1.0, noise: float = 0.005, **changes: Any) -> Path:
    """A sweep of two cells, five seeds; `factor` slows ddp. The folder's name sets the noise."""
    chance = random.Random(folder.name)
    return sweep(
        folder,
        *(
            result(
                parallel, seed=seed, **changes,
                train_seconds=20 * (factor if parallel == "ddp" else 1) * chance.gauss(1, noise),
            )
            for seed in range(5) for parallel in ("none", "ddp")
        ),
        turns=True,
    )  # fmt: skip


def gate(new: Path, old: Path, *more: str) -> int:
    return main([str(new), "--against", str(old), *more])


def test_a_cell_that_is_slower_by_more_than_is_allowed_fails_the_gate(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    old, new = recording(tmp_path / "old"), recording(tmp_path / "new", 1.1)
    assert gate(new, old, "--fail-if-slower", "3%") == 8
    shown = capsys.readouterr()
    assert shown.err.startswith("error: ddp-fp32=×1.")
    assert shown.err.count("\n") == 1
    assert "| none-fp32 | 1.9" in shown.out
    assert not (old / "report").exists()
    assert not (new / "report").exists()
    assert gate(new, old, "--fail-if-slower", "0.2") == 0
    assert gate(old, new, "--fail-if-slower", "3%") == 0
    assert gate(new, old) == 0


def test_a_difference_that_the_interval_does_not_show_passes(tmp_path: Path) -> None:
    old, new = recording(tmp_path / "old", noise=0.2), recording(tmp_path / "new", 1.1, noise=0.2)
    assert gate(new, old, "--fail-if-slower", "3%") == 0


def test_a_recording_can_be_on_either_side(tmp_path: Path) -> None:
    old, new = recording(tmp_path / "old"), recording(tmp_path / "new", 1.1)
    write(old)
    recorded = (old / "report").rename(tmp_path / "recorded")
    before = {path.name: path.stat().st_mtime_ns for path in recorded.iterdir()}
    assert gate(new, recorded, "--fail-if-slower", "0.03") == 8
    assert gate(recorded, new, "--fail-if-slower", "0.03") == 0
    assert {path.name: path.stat().st_mtime_ns for path in recorded.iterdir()} == before


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"batch_size": 128}, "error: batch_size=128: the other recording has 64"),
        ({"processes": 2}, "error: processes of none-fp32=2: the other recording has 1"),
        ({"steps": 440}, "error: steps per epoch=44: the other recording has 22"),
    ],
)
def test_recordings_of_different_work_are_refused_and_what_differs_is_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], changes: dict[str, Any], said: str
) -> None:
    new, old = recording(tmp_path / "new", **changes), recording(tmp_path / "old")
    assert gate(new, old, "--fail-if-slower", "3%") == 2
    assert capsys.readouterr().err.startswith(said)


def test_what_a_study_set_otherwise_is_other_work(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    recorded = []
    for name, width in (("old", 8), ("new", 16)):
        write(recording(tmp_path / name))
        recorded.append((tmp_path / name / "report").rename(tmp_path / f"{name}_recorded"))
        path = recorded[-1] / "environment.json"
        overlay = {"choices": {"model": "convnet"}, "values": {"model": {"net": {"width": width}}}}
        found = json.loads(path.read_text())
        path.write_text(json.dumps({**found, "overlays": {"none-fp32": overlay}}))
    assert gate(recorded[1], recorded[0]) == 2
    assert capsys.readouterr().err.startswith(
        "error: model.net.width=16: the other recording has 8;"
    )
    assert gate(recording(tmp_path / "renamed", study="another"), recorded[0]) == 2
    assert "experiments=another: the other recording has made_up" in capsys.readouterr().err


def test_whole_runs_are_not_compared(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    old = sweep(tmp_path / "old", result(), result(seed=1))
    assert gate(recording(tmp_path / "new"), old) == 2
    assert "old: no timing run of it that counts ended well; times of turns" in (
        capsys.readouterr().err
    )


def test_a_gate_that_could_judge_no_cell_fails(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    old, new = (
        sweep(tmp_path / name, result(), result("ddp"), turns=True) for name in ("old", "new")
    )
    assert gate(new, old, "--fail-if-slower", "3%") == 2
    said = (
        "error: fail-if-slower=3%: no cell could be judged; that takes two runs of a cell in each"
    )
    assert said in capsys.readouterr().err
    assert gate(new, old) == 0


def test_a_cell_that_has_failed_is_warned_of_and_a_recording_that_has_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    old = recording(tmp_path / "old")
    runs = [result(seed=seed, train_seconds=20 + seed / 10) for seed in range(3)]
    assert gate(sweep(tmp_path / "new", *runs, failure("ddp", "fp32"), turns=True), old) == 0
    assert capsys.readouterr().err == "warning: ddp-fp32 has no time now\n"
    assert gate(sweep(tmp_path / "one", *runs, result("ddp"), turns=True), old) == 0
    assert capsys.readouterr().err == "warning: ddp-fp32 has too few runs to be judged\n"
    lost = sweep(tmp_path / "lost", failure("none", "fp32"), failure("ddp", "fp32"))
    assert gate(lost, old) == 2
    assert f"{tmp_path.name}/lost: no timing run of it that counts" in capsys.readouterr().err


@pytest.mark.parametrize("share", ["3", "x", "-1%", "100%", "nan"])
def test_a_share_that_is_none_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], share: str
) -> None:
    assert gate(tmp_path, tmp_path, f"--fail-if-slower={share}") == 2
    assert "3% or 0.03 is allowed" in capsys.readouterr().err
