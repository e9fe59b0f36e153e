"""Mixup: the same for every split of a batch, exact on resume."""

from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from ninefold.dataset.augmentation import Mixup, beta
from ninefold.dataset.loader import HostSource
from ninefold.dataset.preparation import ImagePreparation
from ninefold.engine.batches import Preparation
from ninefold.engine.parallel import RankContext
from ninefold.errors import ConfigError
from ninefold.task.classification import Classification
from tests.dataset.kit import ALONE, CPU, labeled, ranks
from tests.dataset.kit import epoch as epoch_of
from tests.faults.refusals import refused
from tests.kit import same

COUNT, BATCH = 50, 16
PLAIN = ImagePreparation(3, size=16, flip=True, crop=2)
MIXED = Mixup(PLAIN, 0.4, classes=5)
EXAMPLES = labeled(COUNT, 3, 20, 24, classes=5)


def epoch(prepare: Preparation, context: RankContext = ALONE, start: int = 0) -> list[Any]:
    return epoch_of(HostSource(EXAMPLES), prepare, context, 1, start, BATCH)


@pytest.mark.parametrize("processes", [2, 4])
def test_processes_train_on_the_images_and_targets_of_one_process(processes):
    alone = epoch(MIXED)
    assert not any(torch.equal(a[0], b[0]) for a, b in zip(alone, epoch(PLAIN), strict=True))
    for context in ranks(processes):
        torch.set_num_threads(1 + context.rank % 2)
        mine = epoch(MIXED, context)
        torch.set_num_threads(2)
        part = slice(context.rank, None, processes)
        assert same(mine, [(inputs[part], targets[part]) for inputs, targets in alone])


def test_an_epoch_that_is_resumed_goes_on_with_the_same_images_and_targets():
    assert same(epoch(MIXED)[2:], epoch(MIXED, start=2))


def test_mixup_mixes_images_and_classes_in_the_same_share():
    (mixed, shares), (plain, classes) = epoch(MIXED)[0], epoch(PLAIN)[0]
    other, hot = plain.roll(BATCH // 2, 0), F.one_hot(classes, 5)
    theirs = hot.roll(BATCH // 2, 0)
    share = ((mixed - other) * (plain - other)).sum((1, 2, 3)) / (plain - other).pow(2).sum(
        (1, 2, 3)
    )
    assert 0 <= share.min() < share.max() <= 1
    assert torch.allclose(shares, share[:, None] * hot + (1 - share)[:, None] * theirs, atol=1e-5)
    assert torch.allclose(shares.sum(1), torch.ones(BATCH))


def test_the_draws_of_beta_are_an_examples_own():
    rows = np.arange(1000).reshape(4, 250)
    whole, some = beta(0.2, 7, 3, rows), beta(0.2, 7, 3, rows[1:3, ::5])
    assert np.array_equal(whole[1:3, ::5], some)
    assert abs(whole.mean() - 0.5) < 0.05
    assert abs(whole.var() - 0.25 / 1.4) < 0.02  # of Beta(a, a): 1 / (4 (2 a + 1))


@pytest.mark.parametrize(
    ("classes", "inputs", "targets", "line"),
    [
        (5, torch.rand(4, 3, 8, 8), torch.rand(4, 6), "the targets are float32"),
        (5, torch.ones(4, 9).long(), torch.zeros(4).long(), r"int64 \[9\];"),
        (None, torch.rand(4, 9), torch.zeros(4).long(), "whose number"),
        (5, {"a": torch.rand(4, 9)}, torch.zeros(4).long(), "inputs are a dict of a;"),
        (5, torch.rand(4, 9), {"a": torch.zeros(4)}, "targets are a dict of a;"),
        (5, torch.rand(3, 9), torch.zeros(3).long(), "4 examples are 3 inputs;"),
    ],
)
def test_what_cannot_be_mixed_is_one_line(classes, inputs, targets, line):
    class AsItIs:
        def draws(self, *_: object) -> list[None]:
            return [None]

        def __call__(self, inputs: Any, targets: Any, _: None) -> tuple[Any, Any]:
            return inputs, targets

    prepare = Mixup(AsItIs(), 0.2, classes)
    (draw,) = prepare.draws(0, 0, np.arange(4)[None], (4,), CPU)
    with pytest.raises(ConfigError, match=rf"^error: augment.mixup=0.2: .*{line}"):
        prepare(inputs, targets, draw)


def test_labels_are_smoothed_in_training_alone_and_also_where_they_are_mixed():
    output, target = torch.randn(6, 7), torch.arange(6) % 5
    task = Classification(5, label_smoothing=0.1)
    hot = F.one_hot(target, 5).float()
    expected = F.cross_entropy(output, target, label_smoothing=0.1)
    assert torch.allclose(task.train().loss(output, target), expected)
    assert torch.allclose(task.loss(output, hot), expected)  # of fewer classes than outputs
    assert torch.equal(task.eval().loss(output, target), F.cross_entropy(output, target))


@pytest.mark.parametrize("asked", ["augment.mixup=0.2", "dataset.flip=true"])
def test_items_of_several_inputs_are_refused_where_they_would_be_augmented(shell, asked):
    (shell.folder / "conf" / "model").mkdir(parents=True)
    net = "net: {_target_: tests.dataset.kinds.Joined}\n"
    (shell.folder / "conf" / "model" / "joined.yaml").write_text(net)
    node = "{_target_: tests.dataset.mine.Item, kind: image and row}"
    words = ("--config-dir=conf", "model=joined", "batch_size=16", "dataset=mapped")
    data = (f"dataset.train={node}", f"dataset.test={node}", "dataset.classes=5")
    refused(shell.train(*words, *data, asked), 2, f"{asked}: ")
