"""Objectives: a task from outside the package, weighted by examples wherever it is computed."""

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from ninefold.dataset.loader import HostSource
from ninefold.dataset.preparation import ImagePreparation
from ninefold.engine.batches import Batches, Preparation
from ninefold.engine.parallel import Place
from ninefold.engine.parallel.dp import Replicas
from ninefold.engine.task import Objective
from ninefold.task.classification import Classification
from tests.conftest import ROOT, Shell, metrics, result
from tests.task.toy import IGNORED, Halves, Mirrored, Segmentation

ALONE = Place(0, 1, torch.device("cpu"))
CONFIG = {
    "dataset/halves.yaml": "_target_: tests.task.toy.Halves\nroot: null\nlimit: null\nclasses: 2\n"
    "shape: [1, 8, 8]\nmean: null\nstd: null\nflip: true\ncrop: 0\nval: 0\n",
    "task/halves.yaml": "_target_: tests.task.toy.Segmentation\n",
    "model/tiny.yaml": "net:\n  _target_: torch.nn.Conv2d\n  in_channels: 1\n  out_channels: 2\n"
    "  kernel_size: 3\n  padding: 1\ninput_channels: 1\ninput_size: null\n"
    "memory_format: contiguous_format\n",
}


@pytest.fixture
def own(shell: Shell) -> list[str]:
    """The options with which a user's own configuration is found and chosen."""
    for name, text in CONFIG.items():
        path = shell.folder / "own" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return [
        "dataset=halves", "task=halves", "model=tiny", "epochs=2",
        "batch_size=8", "log_every=1", "logger=quiet", "optimizer.lr=0.1",
    ]  # fmt: skip


def test_a_segmentation_task_trains_alike_under_every_strategy(
    shell: Shell, own: list[str]
) -> None:
    env = {"PYTHONPATH": str(ROOT)}
    done = shell.train(
        *("--config-dir=own", "-m", "parallel=none,dp,ddp", "launch.cpu_processes=2"),
        "study.ask=[accuracy]",
        *("hydra.sweep.dir=s", *own),
        env=env,
    )
    assert done.returncode == 0, done.stderr
    alone, *others = (next((shell.folder / "s").glob(f"*_{p}_*")) for p in ("none", "dp", "ddp"))
    losses = metrics(alone, "loss")
    assert len(losses) == 12
    assert losses[-1] < losses[0]
    for folder in others:
        for key in ("loss", "test_loss", "test_accuracy"):
            assert metrics(folder, key) == pytest.approx(metrics(alone, key), abs=1e-5)
        assert result(folder)["processes"] == (2 if "_ddp_" in folder.name else 1)
    found = result(alone)
    assert found["score"] == "mean IoU"
    assert set(found["scores"]) == {"pixels"}
    assert found["accuracy"] == metrics(alone, "test_accuracy")[-1]
    assert found["test_count"] == 13


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


class OnCPU(Replicas):
    """DataParallel's algorithm with as many copies as are asked for, all on the CPU."""

    def __init__(self, module: nn.Module, count: int) -> None:
        super().__init__(module, device_ids=[])
        self.module, self.dim, self.output_device = module, 0, 0
        self.device_ids, self.src_device_obj = list(range(count)), torch.device("cpu")

    def scatter(self, inputs: Any, kwargs: Any, device_ids: Any) -> Any:
        images, masks, *others = inputs
        chunks = zip(images.chunk(len(device_ids)), masks.chunk(len(device_ids)), strict=True)
        parts: list[Any] = [(*pair, *others) for pair in chunks]
        if kwargs:  # as DataParallel does: an entry for each device, whether it has examples or not
            parts += [()] * (len(device_ids) - len(parts))
        return parts, [kwargs] * len(parts)

    def replicate(self, module: Any, device_ids: Any) -> Any:
        return [module for _ in device_ids]

    def parallel_apply(self, replicas: Any, inputs: Any, kwargs: Any) -> Any:
        return [r(*i, **k) for r, i, k in zip(replicas, inputs, kwargs, strict=True)]


@pytest.fixture
def gathering(monkeypatch: pytest.MonkeyPatch) -> None:
    """Gathers tensors of a CPU, which DataParallel's own refuses."""
    monkeypatch.setattr(nn.DataParallel, "gather", lambda _, outputs, device: torch.cat(outputs))


@pytest.mark.usefixtures("gathering")
@pytest.mark.parametrize(("count", "copies"), [(7, 3), (8, 2), (5, 4), (2, 3)])
def test_replicas_with_parts_of_unlike_sizes_have_the_loss_of_the_whole_batch(
    count: int, copies: int
) -> None:
    inputs, masks = batch(count)
    one, many = (Objective(copy.deepcopy(network()), Segmentation()) for _ in range(2))
    wrapped = OnCPU(many, copies)
    truth, loss = one(inputs, masks), wrapped(inputs, masks)
    assert loss.shape == ()
    assert loss.item() == pytest.approx(truth.item(), rel=1e-6)
    truth.backward()
    loss.backward()
    for ours, theirs in zip(many.parameters(), one.parameters(), strict=True):
        assert ours.grad is not None
        assert theirs.grad is not None
        assert torch.allclose(ours.grad, theirs.grad, rtol=1e-5, atol=1e-7)
    if (count, copies) == (7, 3):  # the mean over three parts of 3, 3 and 1 is another number
        parts = [one(i, m) for i, m in zip(inputs.chunk(3), masks.chunk(3), strict=True)]
        assert abs(torch.stack(parts).mean() - truth) > 1e-4


@pytest.mark.usefixtures("gathering")
@pytest.mark.parametrize("count", [7, 2])
def test_replicas_measure_the_whole_batch(count: int) -> None:
    inputs, masks = batch(count)
    objective = Objective(network(), Segmentation())
    loss, sums = OnCPU(objective, 3)(inputs, masks, measure=True)
    whole, expected = objective.measure(inputs, masks)
    assert loss.item() == pytest.approx(whole.item(), rel=1e-6)
    assert torch.equal(sums, expected)


def test_the_objective_of_a_classification_is_its_cross_entropy() -> None:
    torch.manual_seed(0)
    model, inputs, targets = nn.Linear(4, 3), torch.randn(6, 4), torch.randint(0, 3, (6,))
    objective = Objective(model, Classification(3))
    expected = nn.functional.cross_entropy(model(inputs), targets)
    assert objective(inputs, targets) == expected
    loss, counts = objective.measure(inputs, targets)
    assert loss.item() == pytest.approx(6 * expected.item())
    assert counts.sum() == 6


def test_a_checkpoint_of_any_task_holds_the_plain_networks_keys(
    shell: Shell, own: list[str]
) -> None:
    env = {"PYTHONPATH": str(ROOT)}
    done = shell.train(
        *("--config-dir=own", *own, "max_steps=2", "hydra.run.dir=run", "dataset.val=0.25"), env=env
    )
    assert done.returncode == 0, done.stderr
    content = torch.load(shell.folder / "run" / "checkpoints" / "last.pt", weights_only=True)
    assert set(content["model"]) == {"weight", "bias"}
    found = json.loads(Path(shell.folder, "run", "result.json").read_text())
    assert (found["selection"], found["val_count"], found["test_count"]) == ("val", 12, 13)
