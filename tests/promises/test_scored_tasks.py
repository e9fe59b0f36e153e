"""task=regression and multilabel: nine cells train on the same, resume and evaluate exactly."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from benchmarks import ours
from ninefold.checkpoint.store import read
from ninefold.dataset.diabetes import Diabetes
from ninefold.dataset.shapes import Shapes
from ninefold.engine.loop import train
from ninefold.errors import Failure, Refused
from tests.conftest import Shell, metrics, result
from tests.faults.runs import one_after_another
from tests.promises.test_resume_and_evaluate import same

STEPS = 12
PARALLEL, AMP = ("none", "dp", "ddp"), ("fp32", "autocast", "scaler")
QUICK = ["threads=2", "clock.warmup=0", "logger=quiet", "launch.cpu_processes=2"]
TASKS = {
    "regression": ["task=regression", "dataset=diabetes", "model=mlp", "batch_size=32"],
    "multilabel": [
        "task=multilabel", "dataset=shapes", "dataset.train_count=192", "dataset.test_count=50",
        "model.net.width=8", "batch_size=32",
    ],
}  # fmt: skip
MASKS = ["task=multilabel", "dataset=shapes", "dataset.masks=true", "dataset.train_count=64",
         "model=unet", "model.net.width=8", "model.net.depth=2", "threads=1"]  # fmt: skip
# Of the losses, which are about 28000 at first in the squared unit of the targets, and 0.7.
TOLERANCE = {"fp32": 1e-5, "autocast": 3e-2, "scaler": 3e-2}


@pytest.fixture(
    scope="module",
    params=[
        "regression",
        *(pytest.param(t, marks=pytest.mark.slow) for t in TASKS if t != "regression"),
    ],
)
def folder(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A study of three or nine cells, a run that was stopped and resumed, and its evaluation."""
    shell = Shell(tmp_path_factory.mktemp(request.param))
    job = [*TASKS[request.param], *QUICK, "epochs=9"]
    amps = AMP if request.param == "regression" else AMP[:1]
    for done in one_after_another(
        shell,
        ["train.py", "-m", *job, f"parallel={','.join(PARALLEL)}", f"amp={','.join(amps)}",
         "parallel.processes=auto", f"max_steps={STEPS}", "log_every=1", "study.ask=[accuracy]",
         "hydra.sweep.dir=sweep"],
        ["train.py", *job, "max_steps=7", "parallel=ddp", "hydra.run.dir=stopped"],
        ["train.py", "resume=stopped", f"max_steps={STEPS}"],
    ):  # fmt: skip
        assert done.returncode == 0, done
    checkpoint = f"ckpt={straight(shell.folder)}"
    done = shell.evaluate(checkpoint, "parallel=none", "hydra.run.dir=evaluation")
    assert done.returncode == 0, done
    return shell.folder


def straight(folder: Path) -> Path:
    """The cell that trains as the run that was stopped, and never stops."""
    [run] = (folder / "sweep").glob("*_ddp_fp32_*")
    return run


def test_all_cells_have_the_same_losses(folder: Path) -> None:
    runs = [path.parent for path in (folder / "sweep").glob("*/result.json")]
    losses = {(result(r)["parallel"], result(r)["amp"]): metrics(r, "loss") for r in runs}
    assert len(losses) in (3, 9)
    for (parallel, amp), found in losses.items():
        assert len(found) == STEPS
        expected = pytest.approx(losses["none", amp], rel=TOLERANCE[amp])
        assert found == expected, (parallel, amp)


def test_a_resumed_run_is_bitwise_one_that_never_stopped(folder: Path) -> None:
    resumed, whole = (
        read(run / "checkpoints" / "last.pt") for run in (folder / "stopped", straight(folder))
    )
    for key in ("model", "optimizer", "scheduler", "rng", "best_accuracy", "best_step"):
        assert same(resumed[key], whole[key]), key


def test_an_evaluation_finds_the_runs_own_figures(folder: Path) -> None:
    [path] = folder.glob("evaluation/**/evaluation.json")
    found, trained = json.loads(path.read_text()), result(straight(folder))
    for key in ("score", "score_unit", "score_better", "figures"):
        assert found[key] == trained[key], key
    for key in ("accuracy", "scores"):
        assert found[key] == pytest.approx(trained[key], rel=1e-6), key
    assert (trained["score"], trained["score_better"]) in (("RMSE", "less"), ("mean F1", "more"))


def test_best_pt_is_of_the_lowest_error_and_the_report_says_so(folder: Path) -> None:
    run = result(straight(folder))
    evaluations = metrics(straight(folder), "test_accuracy")
    best = min(evaluations) if run["score_better"] == "less" else max(evaluations)
    assert run["best_accuracy"] == best
    text = (folder / "sweep" / "report" / "report.md").read_text()
    assert run["score"] in text
    assert ("points below" in text) == (run["score"] != "RMSE")
    assert ("Nothing says how much of the RMSE may be lost" in text) == (run["score"] == "RMSE")


def test_masks_are_labels_of_each_pixel() -> None:
    with ours.training(*MASKS, "max_steps=1") as run:
        found = train(run).test
    assert len(found.scores.each) == 5
    assert 0 <= found.scores.score <= 1


@pytest.mark.parametrize(
    ("overrides", "line"),
    [
        (["task.metric=rmsle"], "task.metric=rmsle: not allowed; rmse, mae, r2 are allowed"),
        (["task.metric=null"], "task.metric=null: not allowed"),
        (["task.margin=0"], "task.margin=0: not allowed; a number above 0 is allowed"),
        (["task.margin=-1"], "task.margin=-1: not allowed"),
        (["task.margin=inf"], "task.margin=inf: not allowed"),
        (["task.margin=nan"], "task.margin=nan: not allowed"),
        (["task.margin=wide"], "task.margin=wide: not allowed"),
        (["task.unit=1"], "task.unit=1: not allowed"),
        (["task.unit=milligrams per deciliter"], "task.score.unit='milligrams per deciliter': no"),
        (["task.unit='a\tb'"], "task.score.unit='a\\tb': no unit"),
        (["task.loss=mape"], "task.loss=mape: no such loss; mse, l1, huber"),
        (["+task.better=sideways"], "task"),
        (["model.net.outputs=2"], "task=regression: the model's output is [2, 2], the targets"),
        (["model=unet"], "model=unet: it fails in evaluation mode on examples of [10]; "),
        (["dataset.classes=3"], "dataset.classes=3: diabetes has 10 numbers and one target"),
        (["dataset.shape=[1,1,11]"], "dataset.shape=[1, 1, 11]: diabetes has 10 numbers"),
        (["dataset.shape=[11]"], "dataset.shape=[11]: "),
        (["dataset.target_std=0"], "dataset.target_std=0: not allowed; a number above 0"),
        (["dataset.limit=0"], "dataset.limit=0: not allowed"),
        (["dataset=digits"], "task=regression: the model's output is [2, 10], the targets are"),
        (["dataset=digits", "model=convnet"], "task=regression: the model's output is [2, 10]"),
        (["task=multilabel"], None),
        (["task=multilabel", "dataset=digits", "model=convnet"],
         "task=multilabel: the model's output is [2, 10], the targets are [2]; logits"),
        (["task=multilabel", "dataset=shapes", "task.classes=2", "model=convnet"],
         "task=multilabel: the model's output is [2, 5], the targets are [2, 5]; logits and"),
        (["task=multilabel", "dataset=shapes", "dataset.masks=true", "model=convnet"],
         "task=multilabel: the model's output is [2, 5], the targets are [2, 5, 16, 16]"),
        (["task=multilabel", "task.loss=bce"], "task.loss=bce: multilabel knows no loss by name"),
        (["task=multilabel", "dataset=shapes", "dataset.classes=4"],
         "task=multilabel: the model's output is [2, 4], the targets"),
        (["dataset=shapes", "dataset.shape=[3,16,16]"], "dataset.shape=[3, 16, 16]: the images of"),
        (["dataset=shapes", "dataset.shape=[1,4,4]"], "dataset.shape=[1, 4, 4]: the images of"),
        (["dataset=shapes", "dataset.shape=[256]"], "dataset.shape=[256]: "),
        (["dataset=shapes", "dataset.masks=2"], "dataset.masks=2: not allowed"),
        (["dataset=shapes", "dataset.train_count=0"], "dataset.train_count=0: not allowed"),
    ],
)  # fmt: skip
def test_what_does_not_fit_is_an_error_in_one_line(overrides: list[str], line: str | None) -> None:
    if line is None:  # one number is a label too, but these targets are none
        line = "dataset=targets: 353 values of the targets are no labels, the first"
    job = [*TASKS["regression"], *overrides, "epochs=1", "threads=1"]
    with pytest.raises((Failure, Refused)) as caught, ours.training(*job):
        pass
    said = str(caught.value).splitlines()
    assert len(said) == 1
    assert said[0].startswith(f"error: {line}")
    assert said[0].count(";") >= 2


@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_targets_that_are_no_numbers_are_named(monkeypatch: pytest.MonkeyPatch, bad: float) -> None:
    load = Diabetes.load

    def damaged(self: Diabetes, split: Any) -> Any:
        found = load(self, split)
        np.asarray(found.targets)[7] = bad
        return found

    monkeypatch.setattr(Diabetes, "load", damaged)
    line = r"^error: dataset=targets: 1 of 353 values are NaN or infinite, the first of example 7;"
    with pytest.raises(Failure, match=line), ours.training(*TASKS["regression"]):
        pass


def test_labels_that_are_none_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    load = Shapes.load

    def damaged(self: Shapes, split: Any) -> Any:
        found = load(self, split)
        np.asarray(found.targets)[3, 1] = 2
        return found

    monkeypatch.setattr(Shapes, "load", damaged)
    line = r"^error: dataset=targets: 1 values of the targets are no labels, the first 2.0 of e"
    with pytest.raises(Failure, match=line), ours.training(*TASKS["multilabel"]):
        pass


def test_scores_by_less_are_minimized_by_a_sweeper_that_maximizes() -> None:
    from omegaconf import OmegaConf

    from ninefold.plugins import objective
    from ninefold.result import Result

    rmse = Result("ok", best_accuracy=3.0, score="RMSE", score_unit="m", score_better="less")
    share = Result("ok", best_accuracy=0.5, score="accuracy")
    for direction, found in (("maximize", -3.0), ("minimize", 3.0)):
        assert objective(rmse, OmegaConf.create({"direction": direction})) == found
        assert objective(share, OmegaConf.create({"direction": direction})) == 0.5
    assert objective(rmse, OmegaConf.create({})) == 3.0
