"""`ninefold bench --strategies` compares a script as one process and by DDP, per example."""

from __future__ import annotations

import json
import sys
from functools import partial
from pathlib import Path

import pytest

from ninefold.bench import batches
from ninefold.bench.change import Change, require_effect
from ninefold.bench.command import Command
from ninefold.bench.measurements import Measurements
from ninefold.bench.messages import Hello
from ninefold.bench.notes import compared
from ninefold.bench.precisions import in_precisions
from ninefold.bench.printed import last_line, raised
from ninefold.bench.strategies import AXIS, LAUNCHER, by_torchrun, in_strategies, trains_in
from ninefold.bench.summary import Summary
from ninefold.errors import ConfigError
from tests.bench.test_same import training
from tests.conftest import Shell

PLAIN_COMMAND = Command("python train.py", variables={"A": "1"})
NONE, DDP = (
    Command("python train.py").changed([Change(name, AXIS, launch, {}, n, took_effect=took_effect)])
    for name, launch, n, took_effect in (
        ("none", str, 1, partial(trains_in, 1, "have the script", "")),
        ("ddp", partial(by_torchrun, 2), 2, partial(trains_in, 2, "have the script", "")),
    )
)
PLAIN = """
import os
import torch
from torch import nn

several = AWARE
if several:
    torch.distributed.init_process_group("gloo")
share = torch.distributed.get_world_size() if several and DIVIDES else 1
model = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 8))
network = nn.parallel.DistributedDataParallel(model) if several else model
optimizer = torch.optim.SGD(model.parameters(), 0.01)
while True:
    optimizer.zero_grad()
    for _ in range(2 // share):
        network(torch.randn(32, 64)).square().mean().backward()
    optimizer.step()
"""
IS = {"AWARE": "int(os.environ.get('WORLD_SIZE', 1)) > 1", "DIVIDES": "False"}
TORCHRUN_FAILED = """Traceback (most recent call last):
  File "{folder}/train.py", line 24, in <module>
    trainer.fit(model)
  File "/packages/lightning/launch.py", line 90, in validate
ValueError: You set `devices=1`, but the world size is 2.
[rank1]: ValueError: You set `devices=1`, but the world size is 2.
Traceback (most recent call last):
  File "/packages/torch/distributed/run.py", line 1, in <module>
torch.distributed.elastic.multiprocessing.errors.ChildFailedError:
==========
"""


def rank(world: int, averages: str | None = None) -> Hello:
    """What a rank of a script says of itself."""
    return {
        "rank": 0, "world": world, "torch": None, "cuda": False, "gpus": [], "unfinished": None,
        "modules": [], "precision": None,
        "averages": averages,
        "script": None,
    }  # fmt: skip


BY_DDP = [rank(2, "DistributedDataParallel")] * 2


@pytest.fixture(autouse=True)
def _without_gpus(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ninefold.bench.strategies.count_gpus", lambda: 0)
    monkeypatch.setattr("ninefold.bench.strategies.cores", lambda: 8)
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)


def test_each_strategy_is_a_command_and_with_precisions_each_in_each() -> None:
    none, ddp = in_strategies(PLAIN_COMMAND, ["none", "ddp"])
    assert (none.text, ddp.text) == (NONE.text, DDP.text)
    assert none.variables == {
        "A": "1", "PL_TRAINER_STRATEGY": "auto", "PL_TRAINER_DEVICES": "1",
        "LT_STRATEGY": "auto", "LT_DEVICES": "1", "ACCELERATE_USE_CPU": "true",
    }  # fmt: skip
    assert ddp.variables == {
        "A": "1", "PL_TRAINER_STRATEGY": "ddp", "PL_TRAINER_DEVICES": "2",
        "LT_STRATEGY": "ddp", "LT_DEVICES": "2", "ACCELERATE_USE_CPU": "true",
        "OMP_NUM_THREADS": "4",
    }  # fmt: skip
    made = [each for of in (none, ddp) for each in in_precisions(of, ["fp32", "bf16"])]
    assert [each.name for each in made] == ["none, fp32", "none, bf16", "ddp, fp32", "ddp, bf16"]
    assert [each.processes for each in made] == [1, 1, 2, 2]
    with pytest.raises(ConfigError, match="dp is none; none and ddp, as of parallel=, are allowed"):
        in_strategies(PLAIN_COMMAND, ["none", "dp"])


def test_ddp_takes_all_gpus_and_none_the_first(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ninefold.bench.strategies.count_gpus", lambda: 3)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "5,6,7")
    none, ddp = in_strategies(PLAIN_COMMAND, ["none", "ddp"])
    assert (none.variables["CUDA_VISIBLE_DEVICES"], ddp.processes) == ("5", 3)
    assert "CUDA_VISIBLE_DEVICES" not in ddp.variables
    monkeypatch.setattr("ninefold.bench.strategies.count_gpus", lambda: 1)
    with pytest.raises(ConfigError, match="there is one GPU here; ddp takes a process for each"):
        in_strategies(PLAIN_COMMAND, ["none", "ddp"])


@pytest.mark.parametrize(
    ("text", "made"),
    [
        (
            "A=1 /of/python3.11 -u train.py --x 1",
            f"A=1 /of/python3.11 -u {LAUNCHER} 2 train.py --x 1",
        ),
        ("cd a && python -m pack.train", f"cd a && python {LAUNCHER} 2 -m pack.train"),
        ("uv run python train.py", f"uv run python {LAUNCHER} 2 train.py"),
        ("python make.py; python train.py", None),
        ("python -c 'import train'", None),
        ("torchrun --nproc-per-node 2 train.py", None),
        (DDP.text, None),
    ],
)
def test_torchrun_is_put_before_the_one_script_of_a_command(text: str, made: str | None) -> None:
    if made is not None:
        assert by_torchrun(2, text) == made
    else:
        with pytest.raises(ConfigError, match="no one script is seen; python FILE and"):
            by_torchrun(2, text)


def test_of_a_script_that_sets_its_gpus_itself_the_two_commands_that_would_do_are_printed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("ninefold.bench.strategies.count_gpus", lambda: 2)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    made = {each.name: each.changes for each in in_strategies(PLAIN_COMMAND, ["none", "ddp"])}
    both = (
        "give 'CUDA_VISIBLE_DEVICES=0 python train.py' 'CUDA_VISIBLE_DEVICES=0,1 python train.py'"
    )
    with pytest.raises(ConfigError) as failure:
        require_effect(made, dict.fromkeys(made, BY_DDP))
    assert str(failure.value).endswith(both)


def simulated(seconds: float, factor: float) -> Measurements:
    """Rounds in which a step of none takes 0.1 s, and one of ddp as long as is said."""
    found = Measurements([NONE, DDP], ends={4: 120.0})
    found.examples.update({"none": 1.0, "ddp": factor})
    found.hellos.update({"none": [rank(1)], "ddp": BY_DDP})
    for name, count in (("none", 64), ("ddp", round(64 * factor))):
        found.batches[name] = batches.taken([[([count], 10 * count)] * 4])
    for number in range(4):
        for turn in range(12):
            noise = 1 + 0.002 * ((7 * turn + number) % 3)
            found.log.add("none", number, seconds=0.1 * noise, steps=1)
            own = noise * (1 + 1e-5 * (number % 2))
            found.log.add("ddp", number, seconds=seconds * own, steps=1)
    return found


def test_a_divided_batch_is_compared_by_the_time_of_a_step() -> None:
    summary = Summary(simulated(0.08, 1.0))
    (pair,) = summary.times.pairs
    assert pair.speedup == pytest.approx(1.25, rel=0.01)
    assert "in examples" not in summary.lead
    seen, line = [each for each in summary.notes if "ddp" in each]
    assert "none in 1 process, ddp in 2 processes by DistributedDataParallel" in seen
    assert line == (
        "A step of ddp takes as many examples as one of none; whether both compute the same was "
        "not looked at."
    )


def test_other_strategies_are_not_held_against_each_other() -> None:
    recorded = {name: training(name, 1) for name in ("none", "ddp")}
    assert compared(Measurements([NONE, DDP], recorded=recorded)) == {}


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("step 1\nstep 2\n", "step 2"),
        ("", "nothing"),
        (
            "Traceback (most recent call last):\n  File 'a.py', line 3\nOSError: no such file\n"
            "wandb: see its log\nException ignored in: <x>\nTraceback (most recent call last):\n"
            "TypeError: closed\n",
            "OSError: no such file",
        ),
    ],
)
def test_of_a_command_that_ends_the_error_of_its_traceback_is_told(
    tmp_path: Path, text: str, told: str
) -> None:
    (log := tmp_path / "1.log").write_text(text)
    assert last_line(log) == told


def test_of_torchrun_the_exception_of_the_script_is_told_with_its_line(tmp_path: Path) -> None:
    (log := tmp_path / "1.log").write_text(TORCHRUN_FAILED.format(folder=tmp_path))
    said = "train.py:24: ValueError: You set `devices=1`, but the world size is 2"
    assert raised(log, tmp_path) == said
    log.write_text("ValueError: of a command without torchrun\n")
    assert raised(log, tmp_path) is None


@pytest.mark.slow
@pytest.mark.parametrize(("divides", "times"), [("False", 2), ("True", 1)])
def test_a_loop_that_knows_torchrun_is_compared_by_its_examples(
    shell: Shell, divides: str, times: int
) -> None:
    write(shell, DIVIDES=divides)
    options = ("--strategies=none,ddp", "--minutes=1", "--json=found.json")
    done = shell.run("-m", "ninefold", "bench", "-v", *options, f"{sys.executable} train.py")
    assert done.returncode in (0, 9), done.stderr
    seen = (
        "Seen in the first step: none in 1 process, ddp in 2 processes by DistributedDataParallel"
    )
    assert seen in done.stdout
    found = json.loads((shell.folder / "found.json").read_text())
    assert [each["examples"] for each in found["commands"]] == [64, 64 * times]
    assert [each["world"] for each in found["commands"]] == [1, 2]


def test_gpus_that_the_command_chooses_are_refused() -> None:
    command = Command("CUDA_VISIBLE_DEVICES=0,1 python train.py", "A")
    with pytest.raises(ConfigError, match=r"it sets CUDA_VISIBLE_DEVICES itself; .*export"):
        in_strategies(command, ["none", "ddp"])


BY_HAND = """
import torch

weight = torch.randn(64, 64, requires_grad=True)
while True:
    (torch.randn(32, 64) @ weight).square().mean().backward()
    weight.data -= 0.01 * weight.grad
    weight.grad = None
"""


@pytest.mark.slow
def test_a_loop_without_an_optimizer_is_refused_and_not_waited_for(shell: Shell) -> None:
    (shell.folder / "train.py").write_text(BY_HAND)
    command = ("--strategies=none,ddp", f"{sys.executable} train.py")
    done = shell.run("-m", "ninefold", "bench", *command, code=2)
    said = (
        "it computes gradients again and again, and has no torch.optim.Optimizer; torch was "
        "imported and no Optimizer.step was called; see "
    )
    assert said in done.stderr
    do = "/1.log, or name their step with --step MODULE:FUNCTION, or --whole\n"
    assert done.stderr.endswith(do)


@pytest.mark.slow
def test_a_loop_that_trains_copies_is_refused(shell: Shell) -> None:
    write(shell, AWARE="False")
    command = ("--strategies=none,ddp", "--minutes=0.5", f"{sys.executable} train.py")
    done = shell.run("-m", "ninefold", "bench", *command, code=2)
    (line,) = [line for line in done.stderr.splitlines() if line.startswith("error: ")]
    words = "error: --strategies=none,ddp: each of the 2 processes of ddp trains a copy of its own"
    assert line.startswith(words)
    assert "times as fast" not in done.stdout


def write(shell: Shell, **changes: str) -> None:
    """Write the loop as train.py."""
    text = PLAIN
    for name, value in {**IS, **changes}.items():
        text = text.replace(name, value)
    (shell.folder / "train.py").write_text(text)
