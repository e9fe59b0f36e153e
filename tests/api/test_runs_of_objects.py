"""A run of objects is a run like any other, and of a stranger's run no object is read."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from torch import nn

from ninefold.api import OPTIONS
from ninefold.api.objects import gather
from ninefold.checkpoint.store import read
from ninefold.dataset.digits import Digits
from ninefold.dataset.preparation import ImagePreparation
from ninefold.model.convnet import ConvNet
from tests.conftest import ROOT, Shell
from tests.faults.refusals import refused

LOSS = nn.functional.cross_entropy
SHORT = ["max_steps=3", "scheduler=none", "logger=quiet", "launch.inline=true"]


def written(folder: Path, *given: Any, **named: Any) -> list[str]:
    """The words of a command that trains with these objects."""
    words = {"test": None, "metric": None, "forward": None, "optimizer": "adamw", "ask": ()}
    found = gather(*given, **{**words, **named}).write(folder)
    chosen = [f"{group}={option}" for group, option in found.items()]
    return ["--config-dir", str(folder / OPTIONS), *chosen]


def convnet() -> nn.Module:
    return ConvNet(channels=1, classes=10, width=32)


def test_objects_train_to_the_same_weights_as_the_options_that_they_are(shell: Shell) -> None:
    """The digits prepared, convnet and cross entropy, bit by bit."""
    data = Digits(classes=10, shape=(1, 8, 8))
    prepare = ImagePreparation(1, mean=[0.3053], std=[0.3760])
    pairs = {}
    for split in ("train", "test"):
        examples = data.load(split)
        inputs, targets = (torch.from_numpy(a) for a in (examples.inputs, examples.targets))
        pairs[split] = prepare(inputs, targets, None)
    words = written(shell.folder, convnet, pairs["train"], LOSS, test=pairs["test"])
    for name, command in (("objects", words), ("options", ["model=convnet", "dataset=digits"])):
        layout = "model.memory_format=contiguous_format"
        done = shell.train(*command, *SHORT, layout, f"hydra.run.dir={name}")
        assert done.returncode == 0, done.stderr
    one, other = (
        read(shell.folder / name / "checkpoints" / "last.pt")["model"]
        for name in ("objects", "options")
    )
    assert one.keys() == other.keys()
    assert all(torch.equal(one[key], other[key]) for key in one)


def touching(path: Path, made: nn.Module) -> nn.Module:
    path.touch()
    return made


class Touching(nn.Linear):
    """A network whose pickle makes a file wherever it is read."""

    def __init__(self, path: Path) -> None:
        super().__init__(4, 3)
        self.path = path

    def __reduce__(self) -> tuple[Any, ...]:
        return touching, (self.path, nn.Linear(4, 3))


def test_objects_of_a_run_are_read_with_trust_and_not_without(shell: Shell) -> None:
    canary = shell.folder / "canary"
    pair = torch.randn(16, 4), torch.randint(0, 3, (16,))
    words = written(shell.folder, Touching(canary), pair, LOSS, test=pair)
    done = shell.train(*words, *SHORT, "batch_size=8", "hydra.run.dir=run")
    assert done.returncode == 0, done.stderr
    inline = "launch.inline=true"
    done = shell.evaluate("ckpt=run", inline, "hydra.run.dir=eval", "trust=true")
    assert done.returncode == 0, done.stderr
    assert canary.exists()
    canary.unlink()
    for command, field in (
        ([str(ROOT / "evaluate.py"), "ckpt=run", "hydra.run.dir=two", inline], "ckpt="),
        ([str(ROOT / "train.py"), "resume=run", "max_steps=4", inline], "resume="),
        (["-m", "ninefold.export", "ckpt=run", "format=pt2"], "ckpt="),
    ):
        refused(shell.run(*command), 3, field, hint="names the target ninefold.api")
    assert not canary.exists()
