"""A run of landmarks in small made-up heads, and its evaluation on two processes."""

import json

import pytest

from tests.conftest import result
from tests.dataset.heads import NAMES, write

# AdamW divides by the size of a gradient: rounding errors of small ones become steps.
SMALL = (
    "task=landmarks", "dataset=volumes", "dataset.shape=[1,18,18,14]", "dataset.classes=3",
    "model=unet3d", "model.net.width=4", "model.net.depth=2", "batch_size=4", "optimizer=sgd",
    "logger=quiet", "threads=1", "clock.warmup=0",
    "log_every=1", "epochs=1000", "max_steps=12", "optimizer.lr=0.1", "launch.cpu_processes=2",
)  # fmt: skip


def test_an_evaluation_tells_the_error_of_each_landmark(shell):
    root = write(shell.folder / "set", {"imagesTr": 10, "imagesTs": 7})
    shell.train(*SMALL, f"dataset.root={root}", "hydra.run.dir=alone", code=0)
    trained = result(shell.folder / "alone")
    words = ("parallel=ddp", "launch.cpu_processes=2", "hydra.run.dir=e")
    done = shell.evaluate("ckpt=alone", *words, code=0)
    found = json.loads((shell.folder / "e" / "evaluation.json").read_text())
    assert found["processes"] == 2
    assert found["score"] == trained["score"]
    assert found["scores"] == pytest.approx(trained["scores"])
    assert set(found["scores"]) == {"mean error mm"}
    assert f"within 4 mm {found['score']:.4f}" in done.stdout
    lines = done.stdout.split("mean error mm of each:\n")[1].splitlines()[:-1]
    each = [[name, f"{found['per_class'][name]:.4f}"] for name in sorted(NAMES)]
    assert [line.split() for line in lines] == each
    again = ("dataset=volumes", f"dataset.root={root}", *SMALL[2:4], "dataset.spacing=[4,4,4]")
    shell.evaluate("ckpt=alone", *again, "hydra.run.dir=coarse", code=0)
    found = json.loads((shell.folder / "coarse" / "evaluation.json").read_text())
    assert found["config"]["task"]["spacing"] == [4, 4, 4]  # of its mm
