"""Landmarks: heatmaps, the losses of examples, positions, and errors in millimeters."""

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ninefold.errors import ConfigError, DataError
from ninefold.extensions.volumes.landmarks import Landmarks, heatmaps, positions

SHAPE, SPACING = (10, 12, 9), (3.0, 2.0, 1.5)
NAN = float("nan")


def batch(count: int = 5) -> tuple[Tensor, Tensor]:
    """Heatmaps and points with unlike numbers of absent landmarks; the last example has none."""
    torch.manual_seed(0)
    output = torch.randn(count, 3, *SHAPE)
    target = torch.rand(count, 3, 3) * (torch.tensor(SHAPE) - 1)
    for row, landmark in ((1, [0]), (2, [1, 2]), (4, [0, 1, 2])):
        target[row : row + 1, landmark] = NAN
    return output, target


def test_a_heatmap_is_a_gaussian_with_a_width_along_each_axis():
    point = torch.tensor([[[4.3, 5.75, 3.1]]])
    sigma = np.array([1.5, 2.0, 0.7])
    grid = np.moveaxis(np.indices(SHAPE), 0, -1)
    expected = np.exp(-0.5 * (((grid - point[0, 0].numpy()) / sigma) ** 2).sum(axis=-1))
    found = heatmaps(point, SHAPE, sigma.tolist())
    assert np.abs(found[0, 0].numpy() - expected).max() < 1e-6


def test_cross_entropy_is_torchs_with_normalized_gaussians_and_mse_sums_over_voxels():
    output, target = batch(2)
    target[1, 0] = 2.5
    maps = heatmaps(target, SHAPE, [4 / mm for mm in SPACING]).flatten(2)
    weights = maps / maps.sum(dim=2, keepdim=True)
    expected = F.cross_entropy(output.flatten(2).flatten(0, 1), weights.flatten(0, 1))
    assert torch.allclose(Landmarks(SPACING).loss(output, target), expected)
    summed = (output - maps.view_as(output)).square().sum() / 6
    assert torch.allclose(Landmarks(SPACING, loss="mse").loss(output, target), summed)


@pytest.mark.parametrize("loss", ["cross_entropy", "mse", nn.SmoothL1Loss()])
def test_the_loss_is_the_mean_over_present_landmarks_and_then_over_examples(loss):
    output, target = batch()
    task = Landmarks(SPACING, loss=loss)
    each = []
    for one, points in zip(output, target, strict=True):
        there = ~points.isnan().any(dim=1)
        alone = task.loss(one[None, there], points[None, there]) if there.any() else torch.zeros(())
        each.append(alone)
    assert torch.allclose(task.loss(output, target), torch.stack(each).mean(), rtol=1e-5)


@pytest.mark.parametrize("loss", ["cross_entropy", "mse"])
def test_absent_landmarks_have_no_gradient_and_no_errors(loss):
    output, target = batch()
    output.requires_grad_()
    task = Landmarks(SPACING, loss=loss)
    task.loss(output, target).backward()
    there = ~target.isnan().any(dim=-1)
    assert output.grad.isfinite().all()
    assert torch.equal(output.grad.flatten(2).abs().sum(dim=2) > 0, there)
    sums = task.measure(output.detach(), target)
    assert sums[:, 0].tolist() == there.sum(0).tolist()
    assert sums.isfinite().all()
    changed = torch.where(there[..., None, None, None], output.detach(), output.detach() + 5)
    assert torch.equal(task.measure(changed, target), sums)


@pytest.mark.parametrize("layout", [torch.contiguous_format, torch.channels_last_3d])
def test_a_position_is_read_from_its_heatmap_between_the_voxels(layout):
    points = torch.tensor([[[4.3, 5.5, 3.0], [0.0, 0.1, 8.0]]])
    maps = heatmaps(points, SHAPE, [0.8] * 3).contiguous(memory_format=layout)
    assert (positions(maps, logits=False) - points).abs().max() < 0.15
    assert (positions(maps.log(), logits=True) - points).abs().max() < 0.15
    alone = torch.full((1, 1, *SHAPE), -3.0)
    alone[0, 0, 9, 11, 0] = -1
    assert positions(alone, logits=False).tolist() == [[[9, 11, 0]]]


def test_errors_are_millimeters_along_each_axis():
    """One voxel along z, y, x is 3, 2, 1.5 mm: (1, 1, 2) voxels are sqrt(9 + 4 + 9) mm."""
    output = torch.full((2, 3, *SHAPE), -100.0)
    output[:, :, 5, 5, 5] = 100
    target = torch.tensor(
        [[[5.0, 5, 5], [4, 4, 7], [NAN, 0, 0]], [[5, 5, 7], [NAN, NAN, NAN], [NAN, NAN, NAN]]]
    )
    task = Landmarks(SPACING, within=3)
    sums = task.measure(output, target)
    assert (sums.dtype, sums.shape) == (torch.float64, (3, 3))
    far = 22**0.5
    assert sums.tolist() == pytest.approx(np.array([[2, 2, 3], [1, 0, far], [0, 0, 0]]))
    scores = task.scores(sums, ["AC", "PC", "top"])
    assert (task.score, scores.score) == ("within 3 mm", pytest.approx(2 / 3))
    assert scores.figures == {"mean error mm": pytest.approx((3 + far) / 3)}
    assert scores.each == {"AC": 1.5, "PC": pytest.approx(far), "top": None}
    assert Landmarks(SPACING, within=2.5).score == "within 2.5 mm"


@pytest.mark.parametrize(
    ("output", "target"),
    [
        ((2, 3, 5, 6, 4), (2, 3, 3)),  # half the volume's size
        ((2, 4, *SHAPE), (2, 3, 3)),  # a heatmap too many
        ((2, 3), (2,)),
        ((2, 3, *SHAPE), (2, *SHAPE)),
    ],
)
def test_output_and_targets_that_do_not_fit_are_refused(output, target):
    task = Landmarks(SPACING, [1, *SHAPE])
    for look in (task.loss, task.measure):
        with pytest.raises(ConfigError, match="task=landmarks: the model's output is"):
            look(torch.zeros(output), torch.zeros(target))


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (
            lambda: Landmarks(SPACING, loss="dice"),
            r"task\.loss=dice: no such loss; cross_entropy, mse",
        ),
        (lambda: Landmarks(None), "task=landmarks: the dataset has no spacing"),
        (lambda: Landmarks(SPACING).scores(torch.zeros(2, 3), []), "no example of the set has a"),
    ],
)
def test_what_cannot_be_learned_or_scored_is_refused(make, said):
    with pytest.raises((ConfigError, DataError), match=said):
        make()
