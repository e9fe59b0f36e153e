"""Bad values of task.loss, loader.* and parallel.loss_in_forward are one line with an exit code."""

from __future__ import annotations

import re

import pytest

from tests.conftest import ROOT, Shell

LINE = re.compile(r"error: [^=\s]+=.*: .+; .+; .+")
LOSSES = """
import torch
from torch import nn


class Scalar(nn.Module):
    def forward(self, output, target):
        return nn.functional.cross_entropy(output, target)


class Wide(nn.Module):
    def forward(self, output, target):
        return torch.ones(7)


class One(nn.Module):
    def forward(self, output):
        return output.sum(1)


class Trained(nn.Module):
    def __init__(self):
        super().__init__()
        self.scale = nn.Parameter(torch.ones(1))


class Empty:
    pass


def number(output, target):
    return 1.0
"""
# What can be seen before any process starts.
EARLY = {
    "loader.workers=-1": "loader.workers=-1: not allowed",
    "loader.share=0": "loader.share=0: not allowed",
    "loader.pinned=yes please": "loader.pinned=yes please: not allowed",
    "parallel=dp parallel.loss_in_forward=1": "parallel.loss_in_forward=1: not allowed",
    "task.loss=3": "task.loss=3: not allowed",
    "task.loss={label_smoothing: 0.1}": "task.loss={'label_smoothing': 0.1}: not allowed",
    "task.loss={_target_: 'two words'}": "task.loss={'_target_': 'two words'}: not allowed",
}
# What a worker finds before its first step.
LATER = {
    "task.loss=dice": "task.loss=dice: no such loss; null, or a section",
    "task.loss={_target_: torch.nn.CrosEntropyLoss}": "No module named 'torch.nn.CrosEntropyLoss'",
    "task.loss={_target_: torch.nn.CTCLoss}": "task.loss=torch.nn.CTCLoss: it fails on outputs",
    "task.loss={_target_: nosuchmodule.Loss}": "No module named 'nosuchmodule'",
    "task.loss={_target_: badlosses.Missing}": "task.loss=badlosses.Missing: it cannot be built",
    "task.loss={_target_: badlosses.Scalar}": "task.loss=[]: the loss has no number for each",
    "task.loss={_target_: badlosses.Wide}": "task.loss=[7]: the loss has no number for each",
    "task.loss={_target_: badlosses.One}": "task.loss=badlosses.One: it fails on outputs [10] and",
    "task.loss={_target_: badlosses.One, a: 1}": "task.loss=badlosses.One: it cannot be built so",
    "task.loss={_target_: badlosses.Trained}": "its parameters would not be trained; it has scale",
    "task.loss={_target_: badlosses.Empty}": "task.loss=badlosses.Empty: it builds nothing to call",
    "task.loss={_target_: badlosses.number, _partial_: true}": "task.loss=float: the loss returns",
    "task.loss={_target_: torch.nn.MSELoss}": "task.loss=torch.nn.MSELoss: it fails on outputs",
    "task.loss={_target_: torch.nn.CrossEntropyLoss, label_smoothing: 2}": "label_smoothing must",
    "task.loss={_target_: torch.nn.CrossEntropyLoss, weight: [1]}": "cannot assign 'list' object",
}


def tried(shell: Shell, arguments: str, *more: str) -> tuple[int, str]:
    """Exit code and the one line of a command."""
    (shell.folder / "badlosses.py").write_text(LOSSES)
    words = re.findall(r"\S+=\{.*\}|\S+=yes please|\S+", arguments)
    done = shell.train(
        *words, *more, "epochs=1", "max_steps=2", "logger=quiet",
        "hydra.run.dir=run", env={"PYTHONPATH": f"{ROOT}:{shell.folder}"},
    )  # fmt: skip
    assert "Traceback" not in done.stderr
    (line,) = done.stderr.splitlines()
    assert LINE.fullmatch(line), line
    return done.returncode, line


@pytest.mark.slow
@pytest.mark.parametrize("arguments", EARLY)
def test_a_value_that_cannot_be_meant_leaves_no_folder(shell: Shell, arguments: str) -> None:
    code, line = tried(shell, arguments)
    assert code == 2
    assert EARLY[arguments] in line
    assert not (shell.folder / "run").exists()


@pytest.mark.slow
@pytest.mark.parametrize("arguments", LATER)
def test_what_cannot_be_trained_with_ends_before_the_first_step(
    shell: Shell, arguments: str
) -> None:
    code, line = tried(shell, arguments, "launch.inline=true")
    assert code == 2
    assert LATER[arguments] in line
    assert not list((shell.folder / "run").glob("metrics.jsonl"))


@pytest.mark.slow
def test_more_loader_threads_than_memory_allows_are_one_line_for_two_processes(
    shell: Shell,
) -> None:
    two = ("parallel=ddp", "launch.cpu_processes=2")
    code, line = tried(shell, "loader.workers=4 loader.share=1e-9", *two)
    assert code == 5
    assert line.startswith("error: loader.workers=4: 9 slots of 2.3 kB are 20.7 kB; ")
    assert line.endswith("use 0 at most, or a smaller batch")
