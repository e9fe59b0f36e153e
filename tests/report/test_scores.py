"""Reports of any score: a share, an error of which less is better, a negative ELBO, in its unit."""

import json
import math
import random
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

from ninefold import report
from ninefold.answer.cell import Cell
from ninefold.answer.gather import gather
from ninefold.answer.grouping import groups, largest_first
from ninefold.answer.measures import of_figures
from ninefold.answer.notes import several_groups
from ninefold.answer.rounds import turns_of
from ninefold.stats.statistics import compare
from ninefold.study_record import StudyRecord
from ninefold.task import Figure, Score
from ninefold.train.run import SELECTED_ON_TEST
from tests.report.made import result, runs_of, sweep, whole
from tests.report.studies import DDP, NONE, NONE_AUTOCAST, Settings

SPEED = {NONE: 20.0, NONE_AUTOCAST: 16.0, DDP: 12.0, Cell("ddp", "mine"): 15.0}
MIOU = Score("mean IoU")
RMSE = Score("RMSE", "m", "less", 0.5)
OF_RMSE = {"score_name": "RMSE", "score_unit": "m", "score_better": "less"}  # of a run
ELBO = Score("ELBO", "nats", "more", 30.0)
FIGURES = {"MAE m": ("MAE", "m", "less", 27.0), "R2": ("R2", "", "more", -0.25)}
VERDICTS = {"none-autocast": "worse", "ddp-fp32": "safe", "ddp-mine": "safe"}


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

    @property
    def group(self) -> Any:
        [found] = self.tree["groups"]
        return found

    @property
    def verdicts(self) -> dict[str, str]:
        return {row["cell"]: row["verdict"] for row in self.group["comparison"]["safety"]}


def study(
    folder: Path, score: Score, level: float, noise: float, lost: float,
    margin: float | None = None, ask: Sequence[str] = ("time",),
    figures: Mapping[str, tuple[str, str, str, float]] = FIGURES,
) -> Written:  # fmt: skip
    """A study of four cells and four seeds, and its report.

    lost: by none-autocast. figures: by key the name, unit, direction and value of each.
    """
    made, curves = [], []
    for seed in range(4):
        for cell, seconds in SPEED.items():
            chance = random.Random(f"{cell}{seed}")
            own = level + chance.gauss(0, noise) - score.sign * lost * (cell == NONE_AUTOCAST)
            made.append(result(
                cell.parallel, cell.amp, seed, study=None, dataset="own", model="mlp",
                score=own, score_name=score.name, score_unit=score.unit, score_better=score.better,
                score_margin=score.margin, train_seconds=10 * seconds * chance.gauss(1, 0.003),
                scores={key: value for key, (*_, value) in figures.items()},
                figures={key: dict(zip(("name", "unit", "better"), kind, strict=False))
                         for key, kind in figures.items()},
                selection="test", notes=[SELECTED_ON_TEST],
            ))  # fmt: skip
            curves.append([
                {"step": n, "epoch": n, "seconds": seconds * n, "test_loss": 1.0,
                 "test_score": own - score.sign * 5 * noise * (10 - n)}
                for n in range(1, 11)
            ])  # fmt: skip
    settings = {"report": {"margin": margin, "target": None}, "study": {"ask": list(ask)}}
    sweep(folder, *made, turns="time" in ask, settings=settings)
    for number, (content, curve) in enumerate(zip(made, curves, strict=True)):
        run = folder / "runs" / f"{number}_{content['parallel']}_{content['amp']}"
        (run / "metrics.jsonl").write_text("\n".join(map(json.dumps, curve)))
    return Written(folder, report.write(folder).text)


@pytest.fixture(scope="module")
def shares(tmp_path_factory: pytest.TempPathFactory) -> Written:
    figures = {"pixel accuracy": ("pixel accuracy", "share", "more", 0.9)}
    folder = tmp_path_factory.mktemp("shares") / "study"
    return study(folder, MIOU, 0.62, 0.0005, lost=0.03, figures=figures)


@pytest.fixture(scope="module")
def errors(tmp_path_factory: pytest.TempPathFactory) -> Written:
    return study(tmp_path_factory.mktemp("errors") / "study", RMSE, 54.0, 0.02, lost=2.0)


def test_a_report_of_segmentation_speaks_of_mean_iou_and_nowhere_of_accuracy(shares):
    for text in (shares.text("report.md"), shares.text("report.html"), shares.console):
        assert "accurac" not in text.replace("pixel accuracy", "").lower()
        assert "mean IoU" in text
    assert (shares.verdicts, shares.tree["answer"]["cell"]) == (VERDICTS, "ddp-fp32")
    for name in ("report.md", "report.html"):
        assert shares.text(name).count(SELECTED_ON_TEST) == 1, name


def test_a_larger_error_is_worse_and_never_in_percent_or_points(errors):
    assert (errors.verdicts, errors.tree["answer"]["cell"]) == (VERDICTS, "ddp-fp32")
    known = {row["cell"]: row for row in errors.group["comparison"]["safety"]}
    assert known["none-autocast"]["difference"] == pytest.approx(2.0, abs=0.1)  # as measured
    kept = known["ddp-fp32"]
    assert kept["difference"] < kept["low"] < 0.5  # an upper bound
    files = ("report.md", "report.html", "report.json", "figure.svg")
    for text in (*map(errors.text, files), errors.console):
        assert not re.search(r"[0-9] points|percentage points|RMSE %|% test RMSE|RMSE, %", text)
    for words in ("less than 0.5 m above none, fp32's", ", at worst +0.", "| RMSE, m ",
                  "MAE, m (less is better)", "Time to a test RMSE of 54."):  # fmt: skip
        assert words in errors.text("report.md"), words


def test_the_time_to_a_target_error_is_that_of_the_first_evaluation_at_or_below_it(errors):
    # Each evaluation is 0.1 m better than the one before; the last is at 54, the target at 54.5.
    [found] = [c["measures"]["to_target"] for c in errors.group["cells"] if c["cell"] == "ddp-fp32"]
    assert {round(value / SPEED[DDP]) for value in found["values"].values()} <= {4, 5, 6}


def test_a_negative_score_is_compared_by_its_margin(tmp_path):
    elbos = study(tmp_path, ELBO, -48523.9, 2.0, lost=200.0)
    assert (elbos.verdicts, elbos.group["settings"]["margin"]) == (VERDICTS, 30.0)
    assert "less than 30 nats below none, fp32's" in elbos.text("report.md")


@pytest.mark.parametrize(
    ("own", "given", "lost", "verdict", "said"),
    [
        (0.5, 3.0, 2.0, {"none-autocast": "safe"}, "less than 3 m above"),
        (None, None, 2.0, {"ddp-fp32": "open"}, "report.margin sets that, in m."),
        (None, None, -2.0, {"none-autocast": "safe"}, "shown to be no worse than none, fp32's"),
    ],
)
def test_the_margin_is_in_the_scores_unit_and_0_without_one(
    tmp_path, own, given, lost, verdict, said
):
    found = study(tmp_path, replace(RMSE, margin=own), 54.0, 0.02, lost=lost, margin=given)
    assert verdict.items() <= found.verdicts.items()
    assert said in found.text("report.md")
    for name in ("report.md", "report.html"):
        assert not re.search(r"(than|to|by) 0 m\b", found.text(name)), name


def test_further_figures_have_the_unit_and_direction_that_their_task_gives(errors, shares):
    def further(group: dict[str, Any]) -> list[tuple[str, str, str, float]]:
        of_plain = group["cells"][0]["measures"]
        return [
            (each["title"], each["unit"], each["better"], of_plain[each["key"]]["mean"])
            for each in group["measures"] if each["key"].startswith("figure: ")
        ]  # fmt: skip

    assert further(errors.group) == [("MAE", "m", "less", 27.0), ("R2", "", "more", -0.25)]
    assert further(shares.group) == [("pixel accuracy", "%", "more", 90.0)]
    assert (Figure("MAE", 1.0, "m").key, Figure("R2", 1.0, "").key) == ("MAE m", "R2")


def test_a_figure_of_unknown_kind_is_a_plain_number_without_a_direction():
    runs = runs_of({NONE: 5.0}, scores={"a": 2.0, "gone": None},
                   figures={"a": {"unit": "kg", "better": "up"}})  # fmt: skip
    found, gone = of_figures(runs)
    assert (found.title, found.unit, found.better, found.value(runs[0])) == ("a", "kg", "", 2.0)
    assert (gone.unit, gone.better, gone.value(runs[0])) == ("", "", None)


def test_runs_with_different_scores_are_never_averaged():
    names = ("within 4 mm", "within 2 mm")
    runs = whole([run for name in names for run in runs_of({NONE: 5.0}, score_name=name)])
    found = groups([*runs, replace(runs[0], seed=99, status="failed", score_name=None)])
    assert [(group.score, group.ok) for group in found] == [
        ("share within 2 mm", 6), ("share within 4 mm", 6)
    ]  # fmt: skip


def test_groups_of_lower_error_come_first():
    good = [replace(run, model="good") for run in runs_of({NONE: 5.0}, **OF_RMSE)]
    bad = [replace(run, model="bad") for run in runs_of({NONE: 5.0}, {NONE: 10.0}, **OF_RMSE)]
    assert [group.model for group in largest_first(groups([*bad, *good]))] == ["good", "bad"]


@pytest.mark.parametrize(
    ("more", "seeds", "why"),
    [
        (5.0, 6, "has the best accuracy of those with as many"),
        (0.0, 6, "comes first of those with as many"),
        (0.0, 7, "has the most of them"),
    ],
)
def test_why_the_answer_is_of_a_group_is_true_of_it_alone(more, seeds, why):
    runs = [replace(run, model="other") for run in runs_of({NONE: 5.0}, seeds=6)]
    found = largest_first(groups([*runs_of({NONE: 5.0}, {NONE: more}, seeds=seeds), *runs]))
    assert several_groups(found).endswith(f", which {why}.")


def test_groups_without_a_score_come_last_and_of_times_alone_the_fastest_first():
    lost = [replace(run, model="lost", score=math.nan) for run in runs_of({NONE: 5.0}, **OF_RMSE)]
    known = [replace(run, model="known") for run in runs_of({NONE: 5.0}, **OF_RMSE)]
    assert [g.model for g in largest_first(groups([*lost, *known]))] == ["known", "lost"]
    timed = [
        replace(run, model=name)
        for name, seconds in (("a", 5.0), ("b", 4.0), ("c", 6.0))
        for run in runs_of({NONE: seconds}) if run.timed
    ]  # fmt: skip
    assert [group.model for group in largest_first(groups(timed))] == ["b", "a", "c"]


def test_verdicts_of_errors_mirror_those_of_their_negatives():
    random_ = random.Random(1)
    cells = [NONE, DDP, NONE_AUTOCAST, Cell("dp", "fp32")]
    values = {
        cell: {seed: 3 + number * 0.2 + random_.gauss(0, 0.05) for seed in range(6)}
        for number, cell in enumerate(cells)
    }
    turned = {cell: {seed: -v for seed, v in known.items()} for cell, known in values.items()}
    less = compare({}, values, Settings(margin=0.3, better="less"))
    more = compare({}, turned, Settings(margin=0.3))
    for one, other in zip(less.score, more.score, strict=True):
        assert (one.verdict, one.p, one.low) == (other.verdict, other.p, -(other.high or 0))
        assert (one.difference, one.high) == (-(other.difference or 0), -(other.low or 0))
    for mine, theirs in zip(less.safety, more.safety, strict=True):
        assert (mine.verdict, mine.low) == (theirs.verdict, -(theirs.low or 0))
    assert {pair.verdict for pair in less.score} >= {"worse"}


def test_a_target_of_a_share_that_is_no_share_is_not_used():
    [group] = groups(runs_of({NONE: 5.0}))
    record = StudyRecord(settings={"report": {"target": 54.0}})
    assert gather(group, record, turns_of((), record)).target != 54.0
    [group] = groups(runs_of({NONE: 5.0}, **OF_RMSE))
    assert gather(group, record, turns_of((), record)).target == 54.0


@pytest.mark.parametrize(
    ("lost", "said"),
    [
        (0.0, "All 3 other configurations keep the RMSE."),
        (2.0, "RMSE: kept by 2, lost by 1 of 3 configurations."),
    ],
)
def test_a_study_that_asked_for_scores_alone_is_answered_and_drawn_by_them(tmp_path, lost, said):
    found = study(tmp_path / "study", RMSE, 54.0, 0.02, lost=lost, ask=["score"])
    assert found.tree["answer"]["lead"] == said
    assert found.tree["answer"]["decided"]
    assert found.console.splitlines()[0] == f"answer: {said}"
    assert "RMSE, difference to none, fp32, m ←" in found.text("figure.svg")
    assert "times as fast" not in found.console


def test_a_study_of_scores_alone_is_not_decided_while_one_is_open(tmp_path):
    found = study(tmp_path / "study", RMSE, 54.0, 2.0, lost=0.0, ask=["score"])
    assert "open" in found.verdicts.values()
    assert not found.tree["answer"]["decided"]
    assert "open" in found.console.splitlines()[0]
