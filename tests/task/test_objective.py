"""Objectives: a task from outside the package, weighted by examples wherever it is computed."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from ninefold.dataset.loader import HostSource
from ninefold.dataset.preparation import ImagePreparation
from ninefold.engine.batches import Batches, Preparation
from ninefold.engine.parallel import RankContext
from ninefold.engine.task import Objective
from ninefold.task.classification import Classification
from tests.task.toy import IGNORED, Halves, Mirrored, Segmentation

ALONE = RankContext(0, 1, torch.device("cpu"))


@pytest.mark.parametrize("prepare", [Mirrored(True), ImagePreparation(1, flip=True, crop=2)])
def test_a_mask_is_moved_with_its_image(prepare: Preparation) -> None:
    examples = Halves().load("train")
    images = np.asarray(examples.inputs[np.arange(48)])
    bright = type(examples)(images, (images[:, 0] > 160).astype(np.uint8))
    seen = []
    for inputs, masks in Batches(HostSource(bright), 8, 0, prepare, ALONE).epoch(0, 0, no, no):
        assert masks.dtype == torch.uint8
        assert torch.equal(masks.bool(), inputs[:, 0] * 255 > 160.5)
        seen.append(inputs)
    before = {tuple(image.flatten().tolist()) for image in torch.from_numpy(images) / 255}
    assert {tuple(image.flatten().tolist()) for image in torch.cat(seen)} - before


def no(*phase: object) -> None:
    return None


def network() -> nn.Module:
    torch.manual_seed(0)
    return nn.Conv2d(1, 2, 3, padding=1)


def batch(count: int) -> tuple[Tensor, Tensor]:
    examples = Halves().load("train").first(count)
    rows = np.arange(count)
    return Mirrored(False)(
        torch.from_numpy(examples.inputs[rows]), torch.from_numpy(examples.targets[rows]), None
    )


def test_the_loss_of_a_batch_is_the_mean_over_shards_of_unlike_numbers_of_valid_pixels() -> None:
    objective = Objective(network(), Segmentation())
    inputs, masks = batch(8)
    whole = objective(inputs, masks)
    shards = torch.stack([objective(inputs[rank::2], masks[rank::2]) for rank in range(2)])
    assert shards.mean().item() == pytest.approx(whole.item(), rel=1e-6)

    def over_pixels(images: Tensor, targets: Tensor) -> Tensor:  # what torch's default would be
        output = objective.network(images)
        return nn.functional.cross_entropy(output, targets.long(), ignore_index=IGNORED)

    parts = torch.stack([over_pixels(inputs[rank::2], masks[rank::2]) for rank in range(2)])
    assert abs(parts.mean() - over_pixels(inputs, masks)) > 1e-4


def test_the_objective_of_a_classification_is_its_cross_entropy() -> None:
    torch.manual_seed(0)
    model, inputs, targets = nn.Linear(4, 3), torch.randn(6, 4), torch.randint(0, 3, (6,))
    objective = Objective(model, Classification(3))
    expected = nn.functional.cross_entropy(model(inputs), targets)
    assert objective(inputs, targets) == expected
    loss, counts = objective.measure(inputs, targets)
    assert loss.item() == pytest.approx(6 * expected.item())
    assert counts.sum() == 6
