"""Several labels of an example or a pixel: scores against scikit-learn's, and what is refused."""

from pathlib import Path

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from multilabel import MultiLabel
from shapes import SHAPES, Shapes
from torch import Tensor, nn

from ninefold.errors import ConfigError, DataError
from ninefold.task import Scores
from tests.conftest import ROOT
from tests.faults.refusals import refuses_job

pytestmark = pytest.mark.slow

OWN = f"hydra.searchpath=[file://{ROOT},file://{Path(__file__).parent}/conf]"
torch.manual_seed(0)
LABELS = torch.rand(41, 4) < torch.tensor([0.5, 0.2, 0.7, 0.0])
LOGITS = torch.randn(41, 4) + 1.5 * LABELS - torch.tensor([0.0, 0.0, 0.0, 9.0])


def scores_of(output: Tensor, target: Tensor, parts: int = 4) -> Scores:
    task = MultiLabel(output.shape[1])
    pairs = zip(output.chunk(parts), target.chunk(parts), strict=True)
    sums = [task.measure(some, their) for some, their in pairs]
    return task.scores(torch.stack(sums).sum(dim=0), [])


def test_scores_are_scikit_learns_and_a_label_that_occurs_nowhere_is_left_out():
    from sklearn import metrics as reference  # it takes long to import

    found, said = (LOGITS > 0).numpy(), LABELS.numpy()
    each = reference.f1_score(said, found, average=None, zero_division=0)
    scores = scores_of(LOGITS, LABELS)
    assert list(scores.each.values()) == [*(pytest.approx(f1) for f1 in each[:3]), None]
    assert scores.score == pytest.approx(each[:3].mean())
    micro = reference.f1_score(said, found, average="micro")
    right = reference.accuracy_score(said.ravel(), found.ravel())
    assert scores.figures == {
        "F1 of all labels": pytest.approx(micro),
        "accuracy of all labels": pytest.approx(right),
    }


@pytest.mark.parametrize("dtype", [torch.bool, torch.uint8, torch.int64, torch.float32])
def test_masks_are_scored_by_the_dice_of_their_pixels_and_labels_may_have_any_dtype(dtype):
    masks, logits = torch.rand(6, 3, 5, 7) < 0.4, torch.randn(6, 3, 5, 7)
    said = logits > 0
    dice = 2 * (said & masks).sum((0, 2, 3)) / (said.sum((0, 2, 3)) + masks.sum((0, 2, 3)))
    assert scores_of(logits, masks.to(dtype)).score == pytest.approx(dice.mean().item())
    loss = MultiLabel(3).loss(logits, masks.to(dtype)).item()
    assert loss == pytest.approx(
        F.binary_cross_entropy_with_logits(logits, masks.float()).item(), rel=1e-6
    )
    weighted = MultiLabel(3, nn.BCEWithLogitsLoss()).loss(logits, masks.to(dtype)).item()
    assert weighted == pytest.approx(loss, rel=1e-6)


def test_a_loss_of_probabilities_decides_at_one_half():
    logits, labels = torch.randn(20, 3), torch.rand(20, 3) < 0.4
    of_logits, of_shares = MultiLabel(3), MultiLabel(3, nn.BCELoss())
    shares = logits.sigmoid()
    assert torch.equal(of_shares.measure(shares, labels), of_logits.measure(logits, labels))
    assert torch.allclose(of_shares.loss(shares, labels), of_logits.loss(logits, labels))
    assert torch.equal(of_shares.choices(shares).argmax(-1), of_logits.choices(logits).argmax(-1))
    assert bool(MultiLabel(3, threshold=9.0).measure(logits, labels)[:, 0].sum() == 0)


def test_one_label_of_an_example_is_a_number_or_a_row_of_one():
    output, target = torch.randn(9, 1), torch.rand(9) < 0.5
    for task in (MultiLabel(1), MultiLabel(1, nn.BCEWithLogitsLoss())):
        expected = F.binary_cross_entropy_with_logits(output[:, 0], target.float())
        for some, their in ((output, target), (output[:, 0], target), (output, target[:, None])):
            assert torch.allclose(task.loss(some, their), expected)
            assert torch.equal(task.measure(some, their), task.measure(output, target[:, None]))


def test_labels_are_smoothed_towards_one_half_in_training_alone():
    output, target = torch.randn(6, 3), torch.rand(6, 3) < 0.5
    task = MultiLabel(3, label_smoothing=0.2)
    expected = F.binary_cross_entropy_with_logits(output, torch.where(target, 0.9, 0.1))
    assert torch.allclose(task.train().loss(output, target), expected)
    assert torch.equal(task.eval().loss(output, target), MultiLabel(3).loss(output, target))


@pytest.mark.parametrize(
    ("output", "target"),
    [
        (torch.zeros(4, 10), torch.zeros(4, dtype=torch.int64)),
        (torch.zeros(4, 3), torch.zeros(4, 2)),
        (torch.zeros(4, 2), torch.zeros(4, 2)),
        (torch.zeros(4, 3, 8, 8), torch.zeros(4, 8, 8)),
    ],
)
def test_outputs_and_labels_that_do_not_fit_are_told_with_their_shapes(output, target):
    with pytest.raises(ConfigError, match=r"^error: task=multilabel: the model's output is \["):
        MultiLabel(3).loss(output, target)


def test_labels_that_are_none_are_refused():
    with pytest.raises(DataError, match=r"targets: 1 values .* the first 2 of example 1; 0 and 1"):
        MultiLabel(2).require_targets(np.array([[0, 1], [2, 1]]))
    with pytest.raises(DataError, match=r"dataset=test: .*1 values of the targets are neither"):
        scores_of(torch.zeros(2, 2), torch.tensor([[0, 1], [2, 1]]), 1)
    with pytest.raises(DataError, match=r"dataset=test: .*all of its labels are 0"):
        scores_of(-torch.ones(2, 2), torch.zeros(2, 2), 1)


@pytest.mark.parametrize(
    ("overrides", "line"),
    [
        # One number is a label too, but these targets are none.
        (["dataset=diabetes", "model=mlp"],
         "dataset=targets: 353 values of the targets are no labels, the first"),
        (["dataset=shapes", "dataset.masks=true"],
         "task=multilabel: the model's output is [2, 5], the targets are [2, 5, 16, 16]"),
        (["dataset=shapes", "task.loss=bce"], "task.loss=bce: no such loss; null, or a section"),
        (["dataset=shapes", "dataset.shape=[3,16,16]"], "dataset.shape=[3, 16, 16]: the images of"),
    ],
)  # fmt: skip
def test_what_does_not_fit_is_an_error_in_one_line(overrides, line):
    job = [OWN, "task=multilabel", *overrides, "batch_size=32", "epochs=1", "threads=1"]
    refuses_job(job, line)


def test_a_shape_is_there_where_its_mask_has_a_pixel():
    labels, masks = Shapes().load("test"), Shapes(masks=True).load("test")
    assert labels.inputs.shape == (512, 1, 16, 16)
    assert np.array_equal(labels.targets, np.asarray(masks.targets).any(axis=(2, 3)))
    shares = np.asarray(labels.targets).mean(axis=0)
    assert ((shares > 0.3) & (shares < 0.5)).all()
    assert (labels.names, len(Shapes(limit=7).load("train"))) == (list(SHAPES), 7)
