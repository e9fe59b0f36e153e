"""Segmentation keeps the promises of training: on a small set, or on CamVid where it is given.

    NINEFOLD_CAMVID=FOLDER python -m pytest tests/promises/test_segmentation.py -m ''

FOLDER holds train, trainannot, test, testannot, val and valannot.
"""

from __future__ import annotations

import copy
import json
import os
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch
from sklearn.metrics import confusion_matrix
from torch import nn

from benchmarks import ours
from benchmarks.rivals import raw
from ninefold.dataset.loader import HostSource
from ninefold.dataset.masks import Masks
from ninefold.dataset.preparation import ImagePreparation
from ninefold.engine.batches import epoch_order
from ninefold.engine.evaluation import evaluate
from ninefold.engine.loop import train
from ninefold.engine.parallel import RankContext
from ninefold.engine.task import Objective
from ninefold.task.segmentation import Segmentation
from tests.conftest import Shell, result
from tests.dataset.scenes import CLASSES, VOID, write
from tests.faults.runs import one_after_another
from tests.promises.test_same_as_the_raw_loop import AMP, Cast
from tests.task.test_classification import Team

CAMVID = os.environ.get("NINEFOLD_CAMVID")
COUNTS = {"train": 80, "val": 6, "test": 10}
SMALL = (
    ("shape=[3,24,32]", "4", "2", "8") if CAMVID is None else ("shape=[3,48,64]", "8", "3", "16")
)


@pytest.fixture(scope="module")
def scenes(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """The options of a segmentation on CamVid, or a set of its layout made up here."""
    root = CAMVID or str(write(tmp_path_factory.mktemp("scenes"), counts=COUNTS))
    classes = CLASSES if CAMVID is None else 11
    shape, width, depth, size = SMALL
    return [
        "task=segmentation", "dataset=masks", f"dataset.root={root}", f"dataset.classes={classes}",
        f"dataset.ignore={VOID}", f"dataset.{shape}", "model=unet", f"model.net.width={width}",
        f"model.net.depth={depth}", f"batch_size={size}", "logger=quiet", "threads=1",
        "clock.warmup=0",
    ]  # fmt: skip


@pytest.mark.parametrize("amp", AMP)
def test_the_weights_after_20_steps_are_bitwise_those_of_the_raw_loop(
    scenes: list[str], amp: str
) -> None:
    plain = ("dataset.mean=null", "dataset.std=null", "dataset.flip=false", "checkpoint.every=null")
    with ours.training(*scenes, *plain, f"amp={amp}", "epochs=20", "max_steps=20") as run:
        model = copy.deepcopy(run.state.model)
        optimizer = torch.optim.AdamW(model.parameters(), lr=0.001, weight_decay=0.01, fused=True)
        called = model if amp == "fp32" else Cast(model)
        examples, size = ours.examples_of(run.batches.source), run.batch_size
        rows = [
            epoch_order(0, epoch, len(examples))[: run.batches.steps_per_epoch * size]
            for epoch in range(20)
        ]
        batches = np.concatenate(rows).reshape(-1, size)[:20]
        loss = partial(raw.masked_loss, void=VOID)
        raw.train(called, optimizer, examples, batches, run.prepare.memory_format, loss)
        train(run)
    assert run.state.step == 20
    for own, theirs in zip(run.state.model.parameters(), model.parameters(), strict=True):
        assert torch.equal(own, theirs)


def test_an_evaluation_tells_the_iou_of_each_class_and_the_confusion(
    scenes: list[str], shell: Shell
) -> None:
    train = ["train.py", *scenes, "max_steps=20", "hydra.run.dir=run"]
    trained, done = one_after_another(shell, train, ["evaluate.py", "ckpt=run", "hydra.run.dir=e"])
    assert trained.returncode == done.returncode == 0, trained.stderr + done.stderr
    found = json.loads((shell.folder / "e" / "evaluation.json").read_text())
    assert set(found["scores"]) == {"pixel accuracy", "mean Dice"}
    assert f"mean IoU {found['accuracy']:.4f}" in done.stdout
    lines = done.stdout.split("IoU of each:\n")[1].splitlines()
    for line, (name, iou) in zip(lines, found["per_class"].items(), strict=False):
        assert line.split() == [name, "no", "pixels"] if iou is None else [name, f"{iou:.4f}"]
    assert sum(map(sum, found["confusion"])) > 0


def test_the_sums_are_the_same_on_1_2_and_3_processes_and_scikit_learns(
    scenes: list[str],
) -> None:
    """Threads in place of processes; the matrix of scikit-learn is of all pixels at once."""
    options = dict(option.split("=", 1) for option in scenes if "=" in option)
    shape = tuple(json.loads(options["dataset.shape"]))
    classes = int(options["dataset.classes"])
    test = Masks(options["dataset.root"], classes=classes, ignore=VOID, shape=shape).load("test")
    torch.manual_seed(0)
    model = nn.Conv2d(3, classes, 3, stride=2, padding=1)
    task = Segmentation(classes, VOID)

    def evaluated(size: int) -> list[object]:
        from concurrent.futures import ThreadPoolExecutor

        team = Team(size)

        def work(rank: int) -> object:
            return evaluate(
                Objective(copy.deepcopy(model), task), HostSource(test), task=task, batch_size=6,
                prepare=ImagePreparation(3), parallel=team,
                context=RankContext(rank, size, torch.device("cpu")),
            ).scores  # fmt: skip

        with ThreadPoolExecutor(size) as pool:
            return list(pool.map(work, range(size)))

    rows = np.arange(len(test))
    with torch.no_grad():
        output = model(torch.from_numpy(test.inputs[rows]).float().div(255))
        output = nn.functional.interpolate(output, shape[1:], mode="bilinear")
    truth, predicted = test.targets[rows].ravel(), output.argmax(1).numpy().ravel()
    valid = truth != VOID
    expected = confusion_matrix(truth[valid], predicted[valid], labels=range(classes))
    hits = expected.diagonal()
    union = expected.sum(0) + expected.sum(1) - hits
    iou = (hits[union > 0] / union[union > 0]).mean()
    for size in (1, 2, 3):
        for scores in evaluated(size):
            assert np.array_equal(scores.table[:, :-1], expected)  # type: ignore[attr-defined]
            assert abs(scores.score - iou) <= 1e-12  # type: ignore[attr-defined]


@pytest.mark.slow
@pytest.mark.skipif(CAMVID is None, reason="CamVid is for research only: name its folder")
def test_four_epochs_of_camvid_teach_far_more_than_the_most_frequent_class(
    scenes: list[str], tmp_path: Path
) -> None:
    """Always "road" is a mean IoU of 0.025 and 0.27 of the pixels."""
    done = Shell(tmp_path).train(
        *scenes, "dataset.shape=[3,90,120]", "model.net.width=16", "model.net.depth=4",
        "model.net.norm=batch", "batch_size=16", "epochs=4", "threads=auto", "hydra.run.dir=run",
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    found = result(tmp_path / "run")
    print(found["accuracy"], found["scores"], found["steps"])
    assert (found["steps"], found["test_count"]) == (88, 233)
    assert found["accuracy"] >= 0.23
    assert found["scores"]["pixel accuracy"] >= 0.70
