"""The answer: which runs count, what they say, and that the recommendation agrees with them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from ninefold.report import read_csv, write
from ninefold.report.curves import read_curves
from tests.test_report import result, sweep


def study(folder: Path, *results: dict, **facts: Any) -> Path:
    """A sweep with facts of its study; `{n}` in them stands for the folder of the n-th run."""
    names = [f"runs/{n}_{run['parallel']}_{run['amp']}" for n, run in enumerate(results)]
    text = json.dumps({"wall_seconds": 1.0, "runs": len(results), **facts})
    for number, name in enumerate(names):
        text = text.replace(f"{{{number}}}", name)
    return sweep(folder, *results, **json.loads(text))


def entry(number: int, runs: list[str], **changes: Any) -> dict[str, Any]:
    """A round of sweep.json."""
    return {
        "round": number, "attempt": 0, "seed": number, "part": 0, "drift": 0.0, "drifted": False,
        "counted": True, "runs": runs, **changes,
    }  # fmt: skip


def test_runs_that_do_not_count_are_listed_and_enter_no_figure(tmp_path: Path) -> None:
    slow = {"train_seconds": 900.0, "notes": ["a note of a slow run"]}
    study(
        tmp_path, result(**slow), result(**slow), result(), result(**slow), result(**slow),
        rounds=[entry(0, ["{1}"], drifted=True, counted=False), entry(0, ["{2}"], attempt=1)],
        burn_in="{0}", superseded=["{3}"],
    )  # fmt: skip
    (tmp_path / "runs" / "4_none_fp32").rename(tmp_path / "superseded")
    write(tmp_path)
    text = (tmp_path / "report" / "table.md").read_text()
    assert "| none | 2.00 (×1.00) |" in text
    assert "5 runs, 5 ok; 4 not counted; 1 seed per cell" in text
    assert "a note of a slow run" not in text
    for folder, why in (
        ("runs/0_none_fp32", "the burn-in"), ("runs/1_none_fp32", "the machine drifted"),
        ("runs/3_none_fp32", "superseded"), ("superseded", "in no round"),
    ):  # fmt: skip
        assert f"(`{folder}`): {why}" in text.replace("it is ", "")
    [counted] = [run for run in read_csv(tmp_path / "report" / "runs.csv") if run.counts]
    assert (counted.round, counted.attempt, counted.part) == (0, 1, 0)


def test_what_a_study_went_on_with_after_a_change_is_a_group_of_its_own(tmp_path: Path) -> None:
    study(
        tmp_path, result(), result(seed=1, train_seconds=40.0),
        rounds=[entry(0, ["{0}"]), entry(1, ["{1}"], part=1)],
    )  # fmt: skip
    write(tmp_path)
    text = (tmp_path / "report" / "table.md").read_text()
    assert text.count("### Seconds per epoch") == 2
    assert "10 epochs, part 2\n" in text


def test_curves_are_the_evaluations_of_the_runs(tmp_path: Path) -> None:
    sweep(tmp_path, result(), result("dp"))
    lines = [
        {"step": 5, "epoch": 0.5, "loss": 1.5},
        {"step": 10, "epoch": 1.0, "test_loss": 0.4, "test_accuracy": 0.5, "seconds": 2.5},
        {"step": 20, "epoch": 2.0, "test_loss": None, "test_accuracy": 0.75},
    ]
    text = "\n".join([*map(json.dumps, lines), '{"test_accuracy": [', '{"test_accuracy": 1e400}'])
    (tmp_path / "runs" / "0_none_fp32" / "metrics.jsonl").write_text(text)
    write(tmp_path)
    points = read_curves(tmp_path / "report" / "curves.csv")
    assert [(p.epoch, p.step, p.seconds, p.accuracy, p.loss) for p in points] == [
        (1.0, 10, 2.5, 0.5, 0.4), (2.0, 20, None, 0.75, None)
    ]  # fmt: skip
    assert {point.folder for point in points} == {"runs/0_none_fp32"}
