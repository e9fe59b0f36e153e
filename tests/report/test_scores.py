"""Reports of tasks other than classification: the score's own name, further figures and units."""

from __future__ import annotations

import csv
import json
import math
import random
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

from ninefold import report
from ninefold.report.data.cell import Cell
from ninefold.report.data.cells import groups
from ninefold.report.data.runs import read_csv
from ninefold.report.stats.measures import of_figures
from ninefold.train.run import SELECTED_ON_TEST
from tests.report.studies import DDP, NONE, NONE_AUTOCAST
from tests.report.test_answer import runs_of, whole
from tests.report.test_report import result, tables_of, take_turns

SPEED = {NONE: 20.0, NONE_AUTOCAST: 16.0, DDP: 12.0, Cell("ddp", "mine"): 15.0}


def kind_of(figure: str) -> dict[str, str]:
    name = figure.removesuffix(" mm")
    unit, better = ("share", "more") if name == figure else ("mm", "less")
    return {"name": name, "unit": unit, "better": better}


def study(
    folder: Path, score: str, level: float, figures: Mapping[str, float], lost: Cell | None = None
) -> Path:
    """Write a study of four cells and four seeds. lost: the cell that is 3 points worse."""
    rounds, made = [], []
    for seed in range(4):
        shift = random.Random(seed).gauss(0, 0.004)
        runs = []
        for cell, seconds in SPEED.items():
            chance = random.Random(f"{cell}{seed}")
            seconds *= chance.gauss(1, 0.003)
            own = level + shift + chance.gauss(0, 0.0005) - 0.03 * (cell == lost)
            name, (parallel, amp) = f"runs/{cell}_{seed}", (cell.parallel, cell.amp)
            path = folder / name
            path.mkdir(parents=True)
            content = result(
                parallel, amp, seed, study=None, dataset="masks", model="unet", accuracy=own,
                score=score, scores={key: value + shift for key, value in figures.items()},
                figures={key: kind_of(key) for key in figures},
                train_seconds=10 * seconds, selection="test",
                notes=[SELECTED_ON_TEST],
            )  # fmt: skip
            (path / "result.json").write_text(json.dumps(content))
            made.append(content)
            lines = [
                {"step": n, "epoch": n, "seconds": seconds * n, "test_loss": 1.0,
                 "test_accuracy": own * (1 - math.exp(-n))}
                for n in range(1, 11)
            ]  # fmt: skip
            (path / "metrics.jsonl").write_text("\n".join(map(json.dumps, lines)))
            runs.append(name)
        rounds.append({"round": seed, "seed": seed, "counted": True, "runs": runs})
    settings = {"report": {"margin": 0.5, "target": 0.5}, "study": {"ask": ["time"]}}
    facts = {
        "wall_seconds": 1.0, "runs": 16, "rounds": rounds, "settings": settings,
        "timing": take_turns(folder, *made),
    }  # fmt: skip
    (folder / "sweep.json").write_text(json.dumps(facts))
    return folder


@dataclass(frozen=True)
class Written:
    """A study with its report: what the console showed, and the texts of its files."""

    folder: Path
    console: str

    def text(self, name: str) -> str:
        return (self.folder / "report" / name).read_text(encoding="utf-8")

    @property
    def tree(self) -> Any:
        return json.loads(self.text("report.json"))


@pytest.fixture(scope="module")
def segmentation(tmp_path_factory: pytest.TempPathFactory) -> Written:
    folder = study(
        tmp_path_factory.mktemp("segmentation") / "study", "mean IoU", 0.62,
        {"pixel accuracy": 0.9, "mean Dice": 0.7}, lost=NONE_AUTOCAST,
    )  # fmt: skip
    return Written(folder, report.write(folder))


@pytest.fixture(scope="module")
def landmarks(tmp_path_factory: pytest.TempPathFactory) -> Written:
    folder = tmp_path_factory.mktemp("landmarks") / "study"
    study(folder, "within 4 mm", 0.93, {"mean error mm": 2.1})
    return Written(folder, report.write(folder))


def test_a_report_of_segmentation_speaks_of_mean_iou_and_nowhere_of_accuracy(
    segmentation: Written,
) -> None:
    texts = [segmentation.text(name) for name in ("report.md", "report.html")]
    texts.append(segmentation.console)
    for text in texts:
        assert "accurac" not in text.replace("pixel accuracy", "").lower()
        assert "mean IoU" in text


def test_the_margin_holds_for_any_score(segmentation: Written) -> None:
    [group] = segmentation.tree["groups"]
    verdicts = {row["cell"]: row["verdict"] for row in group["safety"]}
    assert verdicts == {"none-autocast": "worse", "ddp-fp32": "safe", "ddp-mine": "safe"}
    assert segmentation.tree["answer"]["cell"] == "ddp-fp32"


def test_shares_are_in_percent_and_errors_in_their_unit(
    segmentation: Written, landmarks: Written
) -> None:
    [group] = segmentation.tree["groups"]
    about = [(each["name"], each["unit"], each["better"]) for each in group["further"]]
    assert about == [("pixel accuracy", "%", "more"), ("mean Dice", "%", "more")]
    assert group["further"][0]["cells"]["none-fp32"]["mean"] == pytest.approx(90.0, abs=0.5)
    [error] = landmarks.tree["groups"][0]["further"]
    assert (error["name"], error["unit"], error["better"]) == ("mean error", "mm", "less")
    assert error["cells"]["none-fp32"]["mean"] == pytest.approx(2.1, abs=0.01)
    assert error["cells"]["ddp-fp32"]["relative"] == pytest.approx(0.0)
    assert all("mean error, mm" in landmarks.text(name) for name in ("report.md", "report.html"))


def test_a_score_that_is_a_condition_is_worded_as_a_share(landmarks: Written) -> None:
    chips = {chip["name"]: chip["text"] for chip in landmarks.tree["answer"]["chips"]}
    assert "share within 4 mm" in chips


def test_a_figure_of_unknown_kind_is_a_plain_number_without_a_direction() -> None:
    runs = runs_of({NONE: 5.0}, scores={"perplexity": 40.0, "gone": None})
    perplexity, gone = of_figures(runs)
    assert (perplexity.unit, perplexity.better, perplexity.value(runs[0])) == ("", "", 40.0)
    assert gone.value(runs[0]) is None


def test_a_report_says_once_that_runs_selected_on_the_test_set(segmentation: Written) -> None:
    for name in ("report.md", "report.html"):
        assert segmentation.text(name).count(SELECTED_ON_TEST) == 1, name


def test_runs_recorded_without_a_score_are_of_accuracy(tmp_path: Path) -> None:
    tables_of(study(tmp_path, "mean IoU", 0.6, {"mean Dice": 0.7}))
    path = tmp_path / "report" / "runs.csv"
    with path.open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert json.loads(rows[0]["scores"]).keys() == {"mean Dice"}
    with path.open("w", newline="") as file:
        kept = [name for name in rows[0] if name not in ("score", "scores", "tf32")]
        table = csv.DictWriter(file, kept, extrasaction="ignore")
        table.writeheader()
        table.writerows(rows)
    runs = read_csv(path)
    assert {run.score_name for run in runs} == {"accuracy"}
    assert of_figures(runs) == []


def test_runs_with_different_scores_are_never_averaged() -> None:
    runs = runs_of({NONE: 5.0}, score="within 4 mm")
    runs += runs_of({NONE: 5.0}, score="within 2 mm")
    runs = whole(runs)
    found = groups([*runs, replace(runs[0], seed=99, status="failed", score=None)])
    assert [(group.score, group.ok) for group in found] == [
        ("share within 2 mm", 6), ("share within 4 mm", 6)
    ]  # fmt: skip
    assert found[0].title.endswith("share within 2 mm")


@pytest.mark.pictures
def test_names_from_anybody_are_shown_as_text_only(tmp_path: Path) -> None:
    score, figure = "<img src=x>|\n$a$" + "x" * 999, "<script>|$b$"
    written = Written(tmp_path, report.write(study(tmp_path, score, 0.5, {figure: 0.1})))
    page = written.text("report.html")
    assert "<img src=x" not in page
    assert page.count("<script>") == 1
    assert max(map(len, written.tree["groups"][0]["score"].split())) <= 64


@pytest.mark.parametrize("scores", [[1], {"a": "much"}, {"a": [1]}, {"a": 1e99}, "text"])
def test_a_result_with_damaged_figures_is_listed_as_unreadable(
    tmp_path: Path, scores: object
) -> None:
    folder = tmp_path / "run"
    folder.mkdir()
    (folder / "result.json").write_text(json.dumps(result(scores=scores)))
    tables_of(tmp_path)
    assert [run.status for run in read_csv(tmp_path / "report" / "runs.csv")] == ["unreadable"]
