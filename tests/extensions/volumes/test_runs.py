"""Landmarks and masks keep the promises of training: on small made-up heads, and on a real one."""

import json
from pathlib import Path

import pytest

from tests.conftest import Shell, result
from tests.dataset.heads import NAMES, write

STEPS = 12
# AdamW divides by the size of a gradient: rounding errors of small ones become steps.
SMALL = (
    "task=landmarks", "dataset=volumes", "dataset.shape=[1,18,18,14]", "dataset.classes=3",
    "model=unet3d", "model.net.width=4", "model.net.depth=2", "batch_size=4", "optimizer=sgd",
    "logger=quiet", "threads=1", "clock.warmup=0",
    "log_every=1", "epochs=1000", "optimizer.lr=0.1", "launch.cpu_processes=2",
)  # fmt: skip


@pytest.fixture(scope="module")
def heads(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write(tmp_path_factory.mktemp("heads") / "set", {"imagesTr": 10, "imagesTs": 7})


def trained(heads: Path, folder: Path, steps: int = STEPS) -> Path:
    shell = Shell(folder.parent)
    data = f"dataset.root={heads}"
    shell.train(*SMALL, data, f"max_steps={steps}", f"hydra.run.dir={folder}", code=0)
    assert not shell.survivors()
    return folder


@pytest.fixture(scope="module")
def alone(heads: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run without parallelism in fp32."""
    return trained(heads, tmp_path_factory.mktemp("alone") / "run")


def test_an_evaluation_tells_the_error_of_each_landmark(alone, tmp_path):
    words = ("parallel=ddp", "launch.cpu_processes=2", "hydra.run.dir=e")
    done = Shell(tmp_path).evaluate(f"ckpt={alone}", *words, code=0)
    found = json.loads((tmp_path / "e" / "evaluation.json").read_text())
    assert found["processes"] == 2
    assert found["score"] == result(alone)["score"]
    assert found["scores"] == pytest.approx(result(alone)["scores"])
    assert set(found["scores"]) == {"mean error mm"}
    assert f"within 4 mm {found['score']:.4f}" in done.stdout
    lines = done.stdout.split("mean error mm of each:\n")[1].splitlines()
    for line, name in zip(lines, sorted(NAMES), strict=False):
        assert line.split() == [name, f"{found['per_class'][name]:.4f}"]
