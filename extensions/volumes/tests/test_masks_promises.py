"""Segmentation of volumes keeps the promises of training, on a small set and on a real head."""

from __future__ import annotations

import json
from pathlib import Path

import nibabel
import numpy as np
import pytest

from tests.conftest import Shell, result
from tests.dataset.heads import save, write_masks

STEPS = 12
ANATOMICAL = Path(nibabel.__file__).parent / "tests" / "data" / "anatomical.nii"
MODEL = ("model=unet3d", "model.net.width=4", "model.net.depth=2")
# AdamW divides by the size of a gradient: rounding errors of small ones become steps.
SMALL = (
    "task=segmentation", "dataset=volumes", "dataset.shape=[1,18,18,14]", *MODEL,
    "dataset.classes=3", "dataset.ignore=255", "dataset.class_names=[air,rim,ball]", "batch_size=4",
    "optimizer=sgd", "logger=quiet", "threads=1", "clock.warmup=0", "log_every=1",
    "epochs=1000", "launch.cpu_processes=2",
)  # fmt: skip


@pytest.fixture(scope="module")
def heads(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_masks(tmp_path_factory.mktemp("heads") / "set", {"imagesTr": 26, "imagesTs": 3})


def trained(heads: Path, folder: Path, *more: str, steps: int = STEPS) -> Path:
    shell = Shell(folder.parent)
    done = shell.train(
        *SMALL, f"dataset.root={heads}", f"max_steps={steps}", f"hydra.run.dir={folder}", *more
    )
    assert done.returncode == 0, done.stderr
    assert not shell.survivors()
    return folder


@pytest.fixture(scope="module")
def alone(heads: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run without parallelism in fp32."""
    return trained(heads, tmp_path_factory.mktemp("alone") / "run")


def test_an_evaluation_tells_the_iou_of_each_class(alone: Path, tmp_path: Path) -> None:
    done = Shell(tmp_path).evaluate(
        f"ckpt={alone}", "parallel=ddp", "launch.cpu_processes=2", "hydra.run.dir=e"
    )
    assert done.returncode == 0, done.stderr
    found = json.loads((tmp_path / "e" / "evaluation.json").read_text())
    assert (found["processes"], found["accuracy"], found["scores"]) == (
        2, result(alone)["accuracy"], result(alone)["scores"],
    )  # fmt: skip
    assert f"mean IoU {found['accuracy']:.4f}" in done.stdout
    lines = done.stdout.split("IoU of each:\n")[1].splitlines()
    for line, name in zip(lines, ("air", "rim", "ball"), strict=False):
        assert line.split() == [name, f"{found['per_class'][name]:.4f}"]


@pytest.mark.slow
def test_a_real_head_is_told_from_what_is_around_it(tmp_path: Path) -> None:
    """nibabel's anatomical.nii, turned and noisy, in two classes cut at two thirds of its voxels.

    At twice its spacing, which is an eighth of the voxels.

    Always the more frequent class is a mean IoU of about 0.3.
    """
    image, random = nibabel.load(ANATOMICAL), np.random.default_rng(0)
    values = np.asarray(image.dataobj).astype(np.float64)
    labels = (values > np.quantile(values, 2 / 3)).astype(np.uint8)
    for end, count in (("Tr", 32), ("Ts", 3)):
        for folder in ("images", "labels"):
            (tmp_path / "set" / f"{folder}{end}").mkdir(parents=True)
        for row in range(count):
            noisy = (values + random.normal(0, values.std() / 10, values.shape)).astype(np.float32)
            turn = np.diag([*random.choice([-1.0, 1.0], 3), 1])  # of what the file says
            root = tmp_path / "set"
            save(root / f"images{end}" / f"c{row}_0000.nii.gz", noisy, image.affine @ turn)
            save(root / f"labels{end}" / f"c{row}.nii.gz", labels, image.affine @ turn)
    done = Shell(tmp_path).train(
        "task=segmentation", "dataset=volumes", f"dataset.root={tmp_path / 'set'}", *MODEL,
        "dataset.classes=2", "dataset.ignore=255", "dataset.shape=[1,16,24,20]", "batch_size=4",
        "dataset.spacing=[4,4,4]", "epochs=12", "optimizer.lr=0.01", "logger=quiet", "threads=1",
        "dataset.cache=disk", f"dataset.cache_dir={tmp_path / 'cache'}",
        "hydra.run.dir=run",
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    found = result(tmp_path / "run")
    print(found["accuracy"], found["scores"], found["train_seconds"])
    assert found["accuracy"] > 0.8
