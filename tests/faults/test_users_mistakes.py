"""What a user did is one line that says where: her code by file and line, never "please report it".

Whole commands, with a model, loss, logger and dataset of a user's in a folder of her own.
"""

import subprocess
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.conftest import Shell
from tests.faults.refusals import refused

CODE = """
import os, sys
import torch
from torch import nn
FAULT = os.environ.get("FAULT_OF_USER", "")
def reach(name):
    if FAULT != name: return
    raise ValueError(f"in {name}")
def leave(name):
    if FAULT == name: sys.exit(0)
class Odd(BaseException): pass
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        reach("construction")
        self.layer, self.steps = nn.Linear(64, 10), 0
    def forward(self, images):
        if self.training:
            self.steps += 1
            if self.steps == 3:
                reach("forward")
                if FAULT == "open": open("/nowhere/at/all")
                if FAULT == "ctrl-c": raise KeyboardInterrupt
                if FAULT == "generator": raise GeneratorExit("in forward")
        if FAULT == "shape": return self.layer(images)
        return self.layer(images.flatten(1))
class Log:
    def __init__(self, run): reach("logger")
    def log(self, step, values): reach("log")
    def close(self, result): pass
def two(parameters):
    return torch.optim.SGD(parameters, 0.1), torch.optim.SGD(parameters, 0.1)
class Data:
    def __init__(self):
        leave("data")
        if FAULT == "odd": raise Odd("no Exception")
        if FAULT == "built": raise KeyboardInterrupt("no signal")
    def __len__(self): return 96
    def __getitem__(self, number):
        if number == 40: reach("item")
        return torch.rand(1, 8, 8), number % 10
"""
OPTIONS = {
    "model/u": "net: {_target_: u.Net}\ninput_channels: 1\ninput_size: null\noutput: null\n"
    "memory_format: auto\n",
    "logger/u": "u: {_target_: u.Log}\n",
    "optimizer/lbfgs": "_target_: torch.optim.LBFGS\n_partial_: true\n",
    "optimizer/two": "_target_: u.two\n_partial_: true\n",
    "scheduler/once": "_target_: torch.optim.lr_scheduler.OneCycleLR\n_partial_: true\n"
    "max_lr: 0.1\ntotal_steps: 2\nper: step\n",
    "dataset/u": "defaults: [mapped]\nshape: [1, 8, 8]\ntrain: {_target_: u.Data}\n"
    "test: {_target_: u.Data}\n",
}
FEW = ["batch_size=32", "max_steps=4", "clock.warmup=0", "hydra.run.dir=run"]
SLOW = pytest.mark.slow


@pytest.fixture
def mine(shell: Shell) -> Path:
    """The folder of the user's code and options."""
    folder = shell.folder / "mine"
    for name, text in OPTIONS.items():
        path = folder / "conf" / f"{name}.yaml"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    (folder / "u.py").write_text(CODE)
    return folder


def train(
    shell: Shell, mine: Path, fault: str, *arguments: str
) -> subprocess.CompletedProcess[str]:
    env = {"PYTHONPATH": str(mine), "FAULT_OF_USER": fault}
    model = [] if any(word.startswith("model=") for word in arguments) else ["model=u"]
    return shell.train("--config-dir=mine/conf", *model, *FEW, *arguments, env=env)


def line_of(mine: Path, text: str) -> str:
    """Where in the user's file `text` is, as lines on the screen have it."""
    number = next(n for n, line in enumerate(CODE.splitlines(), 1) if text in line)
    return f"{mine / 'u.py'}:{number}"


QUIET = "logger=quiet"
# What fails in her code, the options, the exit code, the line's beginning, and the line it names.
# What fails in her task is told by its line in tests/train/test_trial.py.
ERRORS = [
    ("forward", [], 1, "rank=0: ValueError: in forward", "raise ValueError"),
    ("data", ["dataset=u"], 2, "code=", "sys.exit"),
    ("logger", ["logger=u"], 1, "rank=0: ValueError", "raise ValueError"),
    ("log", ["logger=u"], 1, "rank=0: ValueError: in log", "raise ValueError"),
    ("item", ["dataset=u", "dataset.classes=10"], 4, "dataset.train=u.Data: item 40 raised",
     "raise ValueError"),
    ("construction", [], 2, "model.net=u.Net: it cannot be built so", "raise ValueError"),
    ("shape", [], 2, "model=u", "if FAULT == \"shape\""),
    ("open", [], 5, "file=/nowhere/at/all", "open("),
    ("odd", ["dataset=u"], 2, "code=", "raise Odd"),
    ("built", ["dataset=u"], 2, "code=", "raise KeyboardInterrupt(\"no"),
    ("ctrl-c", [], 1, "rank=0: KeyboardInterrupt", "raise KeyboardInterrupt"),
    ("ctrl-c", ["launch.inline=true"], 1, "rank=0: Keyb", "raise KeyboardInterrupt"),
    ("generator", [], 1, "rank=0: GeneratorExit: in forward", "raise GeneratorExit"),
]  # fmt: skip
QUICK = 2  # of these `make test` tries the first; the others are for `make faults`


@pytest.mark.parametrize(
    ("fault", "arguments", "code", "field", "text"),
    [
        pytest.param(*case, id=case[0], marks=[] if number < QUICK else [SLOW])
        for number, case in enumerate(ERRORS)
    ],
)
def test_an_error_in_own_code_names_its_line(shell, mine, fault, arguments, code, field, text):
    done = train(shell, mine, fault, QUIET, *arguments)
    refused(done, code, field, hint=line_of(mine, text))
    assert "please report it" not in done.stderr


REFUSED = "optimizer=torch.optim: it, or a scheduler of it, refused its step"


@pytest.mark.parametrize(
    ("arguments", "field"),
    [
        pytest.param(["optimizer=lbfgs"], "optimizer=LBFGS: its step needs a closure"),
        pytest.param(["scheduler=once"], f"{REFUSED} (Tried to",
                     marks=SLOW),
    ],
)  # fmt: skip
def test_an_optimizer_that_refuses_its_step_is_configuration(shell, mine, arguments, field):
    refused(train(shell, mine, "", QUIET, *arguments), 2, field)


def test_who_has_two_optimizers_is_told_of_time_steps(shell, mine):
    done = train(shell, mine, "", QUIET, "optimizer=two")
    refused(done, 2, "optimizer=two: it returns an object of type tuple", hint="time_steps")


@pytest.mark.slow
def test_an_evaluation_without_a_finite_figure_is_numerics(shell, trained):
    content: dict[str, Any] = torch.load(trained / "checkpoints" / "last.pt", weights_only=True)
    content["model"]["features.0.weight"][0] = 1e38
    torch.save(content, shell.folder / "odd.pt")
    done = shell.evaluate("ckpt=odd.pt", "hydra.run.dir=evaluation")
    refused(done, 6, "test_loss=nan: not finite")
    assert not (shell.folder / "evaluation" / "evaluation.json").exists()
