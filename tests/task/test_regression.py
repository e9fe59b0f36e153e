"""Regression: losses, scores against scikit-learn's, and what it refuses."""

import math

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ninefold.engine.task import scoring
from ninefold.errors import ConfigError, DataError
from ninefold.task import Score, Scores
from ninefold.task.regression import Regression

torch.manual_seed(0)
TARGETS = 100 + 20 * torch.randn(37, 3)
OUTPUTS = TARGETS + torch.tensor([5.0, 30.0, 1.0]) * torch.randn(37, 3)


def scores_of(task: Regression, output: Tensor, target: Tensor, parts: int = 4) -> Scores:
    """The scores of sums that were made in parts, as several processes make them."""
    pairs = zip(output.chunk(parts), target.chunk(parts), strict=True)
    sums = [task.measure(some, their) for some, their in pairs]
    return task.scores(torch.stack(sums).sum(dim=0), [])


def test_scores_are_scikit_learns_however_the_set_is_split():
    from sklearn import metrics as reference  # it takes long to import

    said, found = TARGETS.numpy(), OUTPUTS.numpy()
    rmse = math.sqrt(reference.mean_squared_error(said, found))
    mae, r2 = reference.mean_absolute_error(said, found), reference.r2_score(said, found)
    for metric, score in (("rmse", rmse), ("mae", mae), ("r2", r2)):
        scores = scores_of(Regression(metric, "kg"), OUTPUTS, TARGETS)
        assert scores.score == pytest.approx(score, rel=1e-6)
        others = {"RMSE kg": rmse, "MAE kg": mae, "R2": r2}
        del others["R2" if metric == "r2" else f"{metric.upper()} kg"]
        assert scores.figures == pytest.approx(others, rel=1e-6)
    each = [
        math.sqrt(reference.mean_squared_error(a, b)) for a, b in zip(said.T, found.T, strict=True)
    ]
    assert list(scores.each.values()) == pytest.approx(each, rel=1e-6)


def test_r2_may_be_negative_and_is_undefined_for_targets_that_are_all_the_same():
    worse = scores_of(Regression("r2"), OUTPUTS[:, 0] + 1000, TARGETS[:, 0])
    assert worse.score < -100
    same = torch.full((8,), 3.0)
    assert scores_of(Regression("rmse"), torch.zeros(8), same).figures["R2"] is None
    with pytest.raises(DataError, match=r"^error: dataset=test: all targets .* no R2"):
        scores_of(Regression("r2"), torch.zeros(8), same)


def test_each_metric_has_its_direction_unit_and_margin():
    assert scoring(Regression("rmse", "m", 0.5)) == Score("RMSE", "m", "less", 0.5)
    assert scoring(Regression("mae")) == Score("MAE", "", "less", None)
    assert scoring(Regression("r2", "m")) == Score("R2", "", "more", 0.01)
    assert {row["better"] for row in scores_of(Regression(), OUTPUTS, TARGETS).kinds.values()} == {
        "less", "more"
    }  # fmt: skip


@pytest.mark.parametrize(
    ("loss", "theirs"),
    [
        (None, F.mse_loss), ("mse", F.mse_loss), ("l1", F.l1_loss), ("huber", F.huber_loss),
        (nn.HuberLoss(delta=9.0), nn.HuberLoss(delta=9.0)),
        (nn.SmoothL1Loss(), nn.SmoothL1Loss()),
    ],
)  # fmt: skip
def test_losses_are_torchs(loss, theirs):
    found = Regression(loss=loss).loss(OUTPUTS, TARGETS)
    assert found.item() == pytest.approx(theirs(OUTPUTS, TARGETS).item(), rel=1e-6)


@pytest.mark.parametrize(
    ("output", "target"),
    [
        (torch.zeros(4, 10), torch.zeros(4, dtype=torch.int64)),
        (torch.zeros(4, 2), torch.zeros(4, 3)),
        (torch.zeros(4), torch.zeros(5)),
        (torch.zeros(4, 1), torch.zeros(4, 1, dtype=torch.bool)),
        (torch.zeros(4, 1), torch.zeros(4, 1, dtype=torch.complex64)),
    ],
)
def test_outputs_and_targets_that_do_not_fit_are_told_with_their_shapes(output, target):
    with pytest.raises(ConfigError, match=r"^error: task=regression: the model's output is \["):
        Regression().loss(output, target)


def test_targets_that_are_no_numbers_are_named_before_the_run_and_after_an_evaluation():
    bad = np.ones((5, 1), np.float32)
    bad[3:] = np.nan
    with pytest.raises(DataError, match=r"targets: 2 of 5 values .* first of example 3; finite"):
        Regression().require_targets(bad)
    with pytest.raises(DataError, match=r"^error: dataset=targets: a target of the set is NaN"):
        scores_of(Regression(), torch.zeros(5, 1), torch.from_numpy(bad))
    with pytest.raises(ConfigError, match=r"^error: task\.loss=mape: no such loss; mse, l1, huber"):
        Regression(loss="mape")
