"""Reports of scores that are no shares: an error of which less is better, a negative ELBO."""

from __future__ import annotations

import json
import random
import re
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from ninefold import report
from ninefold.report.answer.evidence import gather_evidence
from ninefold.report.data.cell import Cell
from ninefold.report.data.cells import groups, largest_first
from ninefold.report.stats.measures import of_figures
from ninefold.score import Figure, Score
from ninefold.stats.statistics import compare
from ninefold.study_record import StudyRecord
from tests.report.studies import DDP, NONE, NONE_AUTOCAST, Settings
from tests.report.test_answer import runs_of
from tests.report.test_report import result, take_turns
from tests.report.test_scores import SPEED, Written

RMSE = Score("RMSE", "m", "less", 0.5)
ELBO = Score("ELBO", "nats", "more", 30.0)


def study(
    folder: Path,
    score: Score,
    level: float,
    noise: float,
    lost: float,
    margin: float | None = None,
    ask: Sequence[str] = ("time",),
) -> Written:
    """A study of four cells and four seeds, and its report. lost: by none-autocast."""
    rounds, made = [], []
    for seed in range(4):
        runs = []
        for cell, seconds in SPEED.items():
            chance = random.Random(f"{cell}{seed}")
            own = level + chance.gauss(0, noise) - score.sign * lost * (cell == NONE_AUTOCAST)
            name = f"runs/{cell}_{seed}"
            (folder / name).mkdir(parents=True)
            content = result(
                cell.parallel, cell.amp, seed, study=None, dataset="table", model="mlp",
                accuracy=own, score=score.name, score_unit=score.unit, score_better=score.better,
                score_margin=score.margin, train_seconds=10 * seconds * chance.gauss(1, 0.003),
                scores={"MAE m": own / 2, "R2": -0.25},
                figures={
                    "MAE m": {"name": "MAE", "unit": "m", "better": "less"},
                    "R2": {"name": "R2", "unit": "", "better": "more"},
                },
            )  # fmt: skip
            (folder / name / "result.json").write_text(json.dumps(content))
            made.append(content)
            lines = [
                {"step": n, "epoch": n, "seconds": seconds * n, "test_loss": 1.0,
                 "test_accuracy": own - score.sign * 5 * noise * (10 - n)}
                for n in range(1, 11)
            ]  # fmt: skip
            (folder / name / "metrics.jsonl").write_text("\n".join(map(json.dumps, lines)))
            runs.append(name)
        rounds.append({"round": seed, "seed": seed, "counted": True, "runs": runs})
    facts: dict[str, Any] = {
        "wall_seconds": 1.0, "runs": 16, "rounds": rounds,
        "settings": {"report": {"margin": margin, "target": None}, "study": {"ask": list(ask)}},
    }  # fmt: skip
    if "time" in ask:
        facts["timing"] = take_turns(folder, *made)
    (folder / "sweep.json").write_text(json.dumps(facts))
    return Written(folder, report.write(folder))


@pytest.fixture(scope="module")
def errors(tmp_path_factory: pytest.TempPathFactory) -> Written:
    return study(tmp_path_factory.mktemp("errors") / "study", RMSE, 54.0, 0.02, lost=2.0)


@pytest.fixture(scope="module")
def elbos(tmp_path_factory: pytest.TempPathFactory) -> Written:
    return study(tmp_path_factory.mktemp("elbos") / "study", ELBO, -48523.9, 2.0, lost=200.0)


def texts(written: Written) -> Sequence[str]:
    files = [
        written.text(name) for name in ("report.md", "report.html", "report.json", "figure.svg")
    ]
    return [*files, written.console]


def test_a_larger_error_is_worse_and_never_in_percent_or_points(errors: Written) -> None:
    [group] = errors.tree["groups"]
    verdicts = {row["cell"]: row["verdict"] for row in group["safety"]}
    assert verdicts == {"none-autocast": "worse", "ddp-fp32": "safe", "ddp-mine": "safe"}
    [lost] = [row for row in group["safety"] if row["cell"] == "none-autocast"]
    assert lost["difference"] == pytest.approx(2.0, abs=0.1)  # as measured: more meters
    [kept] = [row for row in group["safety"] if row["cell"] == "ddp-fp32"]
    assert kept["difference"] < kept["low"] < 0.5  # an upper bound
    assert errors.tree["answer"]["cell"] == "ddp-fp32"
    for text in texts(errors):
        assert not re.search(r"[0-9] points|percentage points", text)
        assert not [word for word in ("RMSE %", "% test RMSE", "RMSE, %") if word in text]
    assert "times as fast" in errors.console
    assert re.search(
        r"none, autocast .* \(\+[12]\.\d+, at most \+[12]\.\d+\) worse", errors.console
    )
    for words in (
        "less than 0.5 m above none, fp32's", ", at most +0.", "| RMSE, m ",
        "MAE, m (less is better)", "Seconds to a test RMSE of 54.",
    ):  # fmt: skip
        assert words in errors.text("report.md"), words


def test_the_time_to_a_target_error_is_that_of_the_first_evaluation_at_or_below_it(
    errors: Written,
) -> None:
    [group] = errors.tree["groups"]
    # Each evaluation is 0.1 m better than the one before; the last is at 54, the target at 54.5.
    [figures] = [c["measures"]["to_target"] for c in group["cells"] if c["cell"] == "ddp-fp32"]
    assert {round(value / SPEED[DDP]) for value in figures["values"].values()} <= {4, 5, 6}
    assert errors.tree["settings"]["target"] == pytest.approx(54.5, abs=0.05)


def test_a_negative_score_is_compared_by_its_margin(elbos: Written) -> None:
    [group] = elbos.tree["groups"]
    verdicts = {row["cell"]: row["verdict"] for row in group["safety"]}
    assert verdicts == {"none-autocast": "worse", "ddp-fp32": "safe", "ddp-mine": "safe"}
    assert elbos.tree["settings"]["margin"] == 30.0
    assert elbos.tree["settings"]["target"] == pytest.approx(-48554, abs=5)
    assert "less than 30 nats below none, fp32's" in elbos.text("report.md")
    assert ", at least " in elbos.console
    assert "ELBO, nats" in elbos.console
    assert "-4852" in elbos.console
    for text in texts(elbos):
        assert "ELBO %" not in text
        assert "-48523.90 %" not in text


@pytest.mark.parametrize(
    ("own", "given", "verdict", "said"),
    [
        (0.5, 3.0, {"none-autocast": "safe"}, "less than 3 m above"),
        (None, None, {"ddp-fp32": "not enough runs"}, "report.margin sets that, in m."),
    ],
)
def test_the_margin_is_in_the_unit_of_the_score_and_without_one_nothing_may_be_lost(
    tmp_path: Path, own: float | None, given: float | None, verdict: dict[str, str], said: str
) -> None:
    found = study(tmp_path, replace(RMSE, margin=own), 54.0, 0.02, lost=2.0, margin=given)
    verdicts = {row["cell"]: row["verdict"] for row in found.tree["groups"][0]["safety"]}
    assert verdict.items() <= verdicts.items()
    assert said in found.text("report.md")


def test_further_figures_have_the_unit_and_direction_that_their_task_gives(errors: Written) -> None:
    [group] = errors.tree["groups"]
    about = [(each["name"], each["unit"], each["better"]) for each in group["further"]]
    assert about == [("MAE", "m", "less"), ("R2", "", "more")]
    assert group["further"][1]["cells"]["none-fp32"]["mean"] == -0.25
    assert (Figure("MAE", 1.0, "m").key, Figure("R2", 1.0, "").key) == ("MAE m", "R2")


def test_what_anybody_wrote_of_a_figure_is_shown_as_text() -> None:
    runs = runs_of({NONE: 5.0}, scores={"a": 2.0}, figures={"a": {"unit": "kg", "better": "up"}})
    [figure] = of_figures(runs)
    assert (figure.title, figure.unit, figure.better) == ("a", "kg", "")


def test_a_plain_number_is_none_in_a_recording_too(tmp_path: Path) -> None:
    r2 = study(tmp_path / "r2", Score("R2", "", "more", 0.01), 0.5, 0.001, lost=0.2)
    [group] = r2.tree["groups"]
    assert next(row["verdict"] for row in group["safety"]) == "worse"
    assert "less than 0.01 below none, fp32's" in r2.text("report.md")
    assert "points" not in r2.text("report.md")
    recorded = r2.text("report.md")
    again = tmp_path / "again"
    again.mkdir()
    for name in ("runs.csv", "curves.csv", "environment.json"):
        (again / name).write_text(r2.text(name), encoding="utf-8")
    report.write(again)
    assert (again / "report.md").read_text(encoding="utf-8") == recorded


def test_groups_of_lower_error_come_first() -> None:
    said = {"score": "RMSE", "score_unit": "m", "score_better": "less"}
    good = [replace(run, model="good") for run in runs_of({NONE: 5.0}, **said)]
    bad = [replace(run, model="bad") for run in runs_of({NONE: 5.0}, {NONE: 10.0}, **said)]
    assert [group.model for group in largest_first(groups([*bad, *good]))] == ["good", "bad"]


def test_verdicts_of_errors_mirror_those_of_their_negatives() -> None:
    random_ = random.Random(1)
    cells = [NONE, DDP, NONE_AUTOCAST, Cell("dp", "fp32")]
    values = {
        cell: {seed: 3 + number * 0.2 + random_.gauss(0, 0.05) for seed in range(6)}
        for number, cell in enumerate(cells)
    }
    turned = {cell: {seed: -v for seed, v in known.items()} for cell, known in values.items()}
    less = compare({}, values, Settings(margin=0.3, better="less"))
    more = compare({}, turned, Settings(margin=0.3))
    for one, other in zip(less.accuracy, more.accuracy, strict=True):
        assert (one.verdict, one.p, one.low) == (other.verdict, other.p, -(other.high or 0))
        assert (one.estimate, one.high) == (-(other.estimate or 0), -(other.low or 0))
    for mine, theirs in zip(less.safety, more.safety, strict=True):
        assert (mine.verdict, mine.low) == (theirs.verdict, -(theirs.low or 0))
    assert {pair.verdict for pair in less.accuracy} >= {"worse"}


def test_a_target_of_a_share_that_is_no_share_is_not_used() -> None:
    [group] = groups(runs_of({NONE: 5.0}))
    record = StudyRecord(settings={"report": {"target": 54.0}})
    assert gather_evidence(group, (), record, None).target != 54.0
    [group] = groups(runs_of({NONE: 5.0}, score="RMSE", score_unit="m", score_better="less"))
    assert gather_evidence(group, (), record, None).target == 54.0


@pytest.mark.parametrize(
    ("lost", "said"),
    [
        (0.0, "All 3 other configurations keep the RMSE."),
        (2.0, "RMSE: kept by 2, lost by 1 of 3 configurations."),
    ],
)
def test_a_study_that_asked_for_scores_alone_is_answered_and_drawn_by_the_scores(
    tmp_path: Path, lost: float, said: str
) -> None:
    found = study(tmp_path / "study", RMSE, 54.0, 0.02, lost=lost, ask=["accuracy"])
    assert found.tree["answer"]["lead"] == said
    drawn = found.text("figure.svg")
    assert "RMSE, difference to none, fp32, m ←" in drawn
    assert (
        "Left is better. 4 seeds; lines: 95 % intervals; band: lost at most the margin, 0.5 m"
        in drawn
    )
    assert "times as fast" not in found.console
