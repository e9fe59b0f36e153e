"""task=regression and multilabel: what does not fit them is one line."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from benchmarks import ours
from ninefold.dataset.diabetes import Diabetes
from ninefold.engine.loop import train
from ninefold.errors import Failure, Refused

TASKS = {
    "regression": ["task=regression", "dataset=diabetes", "model=mlp", "batch_size=32"],
    "multilabel": [
        "task=multilabel", "dataset=shapes", "dataset.train_count=192", "dataset.test_count=50",
        "model.net.width=8", "batch_size=32",
    ],
}  # fmt: skip
MASKS = ["task=multilabel", "dataset=shapes", "dataset.masks=true", "dataset.train_count=64",
         "model=unet", "model.net.width=8", "model.net.depth=2", "threads=1"]  # fmt: skip


def test_masks_are_labels_of_each_pixel() -> None:
    with ours.training(*MASKS, "max_steps=1") as run:
        found = train(run).test
    assert len(found.scores.each) == 5
    assert 0 <= found.scores.score <= 1


@pytest.mark.parametrize(
    ("overrides", "line"),
    [
        (["task.unit=milligrams per deciliter"], "task.score=Score(name='RMSE', unit='milligrams"),
        (["task.unit='a\tb'"], "task.score=Score(name='RMSE', unit='a\\tb'"),
        (["task.loss=mape"], "task.loss=mape: no such loss; mse, l1, huber"),
        (["model.net.outputs=2"], "task=regression: the model's output is [2, 2], the targets"),
        (["model=unet"], "model=unet: it fails in evaluation mode on examples of [10]; "),
        (["dataset.classes=3"], "dataset.classes=3: diabetes has 10 numbers and one target"),
        (["dataset.shape=[1,1,11]"], "dataset.shape=[1, 1, 11]: diabetes has 10 numbers"),
        (["dataset=digits"], "task=regression: the model's output is [2, 10], the targets are"),
        (["task=multilabel"], None),
        (["task=multilabel", "dataset=digits", "model=convnet"],
         "task=multilabel: the model's output is [2, 10], the targets are [2]; logits"),
        (["task=multilabel", "dataset=shapes", "task.classes=2", "model=convnet"],
         "task=multilabel: the model's output is [2, 5], the targets are [2, 5]; logits and"),
        (["task=multilabel", "dataset=shapes", "dataset.masks=true", "model=convnet"],
         "task=multilabel: the model's output is [2, 5], the targets are [2, 5, 16, 16]"),
        (["task=multilabel", "task.loss=bce"], "task.loss=bce: no such loss; null, or a section"),
        (["task=multilabel", "dataset=shapes", "dataset.classes=4"],
         "task=multilabel: the model's output is [2, 4], the targets"),
        (["dataset=shapes", "dataset.shape=[3,16,16]"], "dataset.shape=[3, 16, 16]: the images of"),
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
