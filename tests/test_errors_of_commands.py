"""Every mistake is one line that names the field, with the documented exit code."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import torch

from tests.conftest import Shell

LINE = re.compile(r"^error: [^=\s]+=.*: .+; .+; .+\n$")

TRAINING = [
    ("parallel=ddpp", "parallel=ddpp", 2, "did you mean ddp"),
    ("epochs=-1", "epochs=-1", 2, "at least 0"),
    ("epochs=two", "epochs=two", 2, "whole number"),
    ("epohcs=3", "epohcs=3", 2, "did you mean epochs"),
    ("+epoch=3", "epoch=3", 2, "did you mean epochs"),
    ("optimizer.lr=nan", "optimizer.lr=nan", 2, "above 0"),
    ("batch_size=0", "batch_size=0", 2, "at least 1"),
    ("batch_size=63 parallel=ddp parallel.processes=2", "batch_size=63", 2, "62 or 64"),
    ("batch_size=63 parallel=ddp launch.cpu_processes=2", "batch_size=63", 2, "62 or 64"),
    ("parallel=none parallel.processes=2", "parallel.processes=2", 2, "parallel=ddp"),
    ("parallel=ddp parallel.processes=0", "parallel.processes=0", 2, "at least 1"),
    (
        "parallel=ddp parallel.processes=2 launch.inline=true",
        "launch.inline=true",
        2,
        "2 processes",
    ),
    ("amp.dtype=fp8", "amp.dtype=fp8", 2, "bfloat16"),
    ("device=cuda", "device=cuda", 2, "device=cpu"),
    ("optimizer.lr=${nothing}", "optimizer.lr", 2, "nothing"),
    ("experiments=nine_wey", "experiments=nine_wey", 2, "nine_way"),
    ("model.net.depth=3", "model.net.depth=3", 2, "no such key"),
    ("+model.net.depth=3", "model.net=ninefold.model.convnet.ConvNet", 2, "depth"),
    ("dataset=cifar10 dataset.root=nowhere", "dataset.root=nowhere", 4, "dataset.download=true"),
    ("resume=nowhere", "resume=nowhere", 2, "config.yaml"),
]


@pytest.mark.parametrize(("command", "field", "code", "hint"), TRAINING)
def test_a_mistake_in_training_is_one_line(
    shell: Shell, command: str, field: str, code: int, hint: str
) -> None:
    done = shell.train(*command.split())
    assert done.returncode == code
    assert LINE.match(done.stderr), done.stderr
    assert done.stderr.startswith(f"error: {field}")
    assert hint in done.stderr
    if not command.startswith("+model"):  # what a constructor takes is known to its worker only
        assert done.stdout == ""
        assert list(shell.folder.iterdir()) == [], "something was written"


def test_all_problems_of_a_configuration_are_told_at_once(shell: Shell) -> None:
    done = shell.train("epochs=-1", "batch_size=0", "device=tpu")
    assert done.returncode == 2
    fields = [line.partition(":")[2].partition("=")[0].strip() for line in done.stderr.splitlines()]
    assert sorted(fields) == ["batch_size", "device", "epochs"]


def test_a_sweep_that_names_an_option_that_does_not_exist_runs_no_cell(shell: Shell) -> None:
    done = shell.train("-m", "parallel=none,ddpp", "hydra.sweep.dir=sweep")
    assert done.returncode == 2
    assert LINE.match(done.stderr), done.stderr
    assert not list((shell.folder / "sweep").glob("*/result.json"))


def test_a_sweep_under_torchrun_is_refused(shell: Shell) -> None:
    done = shell.torchrun("-m", "parallel=ddp", "seed=0,1")
    assert "error: hydra.mode=MULTIRUN:" in done.stderr
    assert done.stderr.count("error: ") == 1


@pytest.mark.parametrize(
    ("content", "hint"),
    [
        (None, "no such checkpoint"),
        (b"", "cannot be read"),
        (b"<html>not found</html>", "cannot be read"),
    ],
)
def test_a_checkpoint_that_is_none_is_one_line(
    shell: Shell, content: bytes | None, hint: str
) -> None:
    if content is not None:
        (shell.folder / "x.pt").write_bytes(content)
    done = shell.evaluate("ckpt=x.pt", "model=convnet", "dataset=digits")
    assert done.returncode == 3
    assert LINE.match(done.stderr), done.stderr
    assert hint in done.stderr


def test_evaluating_nothing_or_nowhere_writes_nothing(shell: Shell) -> None:
    for arguments in (["ckpt=nowhere"], []):
        done = shell.evaluate(*arguments)
        assert done.returncode == 3
        assert LINE.match(done.stderr), done.stderr
    assert list(shell.folder.iterdir()) == []


def test_a_state_dict_that_says_nothing_of_its_model_asks_for_it(
    shell: Shell, tmp_path: Path
) -> None:
    torch.save({"weight": torch.zeros(2)}, tmp_path / "bare.pt")
    done = shell.evaluate("ckpt=bare.pt")
    assert done.returncode == 2
    assert done.stderr.startswith("error: model=null:")
    assert LINE.match(done.stderr), done.stderr
