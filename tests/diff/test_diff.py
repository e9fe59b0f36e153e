"""`ninefold diff`: what is recorded, what is said, and the exit code."""

import json
import subprocess
import sys
from importlib import import_module
from statistics import median
from typing import Any

import pytest
import torch

from ninefold.bench.command import INJECT
from ninefold.diff.__main__ import main
from ninefold.diff.compare import Entry, Training, distance, find
from ninefold.diff.kinds import answer
from tests.conftest import Shell
from tests.diff.plants import HERE, PLANTS, PYTHON, wrong


@pytest.fixture
def entry(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Makes the entry of a tensor, as a command's process records it."""
    monkeypatch.syspath_prepend(INJECT)
    monkeypatch.setenv("NINEFOLD_BENCH_RECORD", "{}")
    module = import_module("ninefold_bench_record")

    def made(tensor: torch.Tensor) -> Entry:
        module.RECORDER.note("output", "x", tensor, by_example=True)
        _, _, dtype, rows, numbers = module.RECORDER.entries.pop()
        return Entry(dtype, rows, *numbers.tolist())

    yield made
    for name in [name for name in sys.modules if name.startswith("ninefold_bench_")]:
        del sys.modules[name]


def test_entries_add_up_over_examples_and_are_apart_by_the_error_of_elements(entry):
    torch.manual_seed(0)
    whole = torch.randn(12, 70_000)
    parts = [entry(part) for part in whole.chunk(4)]
    total = parts[0].plus(parts[1]).plus(parts[2]).plus(parts[3])
    assert distance(entry(whole), total) < 1e-12
    for error in (1e-6, 1e-2):
        noisy = [entry(whole * (1 + error * torch.randn_like(whole))) for _ in range(5)]
        assert error / 30 < median(distance(entry(whole), each) for each in noisy) < 30 * error
    assert distance(entry(whole), entry(whole.flip(1))) > 0.01
    assert distance(entry(whole), entry(whole.clone().fill_(torch.nan))) == float("inf")


@pytest.mark.parametrize(("parts_at", "kind"), [(1, "function"), (2, "rounding")])
def test_gradients_alone_that_part_a_little_after_step_1_are_no_mistake(parts_at, kind) -> None:
    def training(name: str, bend: float) -> Training:
        def entries(gradient: float) -> list[Any]:
            numbers = {"output": 1.0, "loss": 1.0, "grad": gradient}
            return [
                [phase, name, "float32", 1, [1.0, 0.0, 0.0, x, x**2, x]]
                for phase, x in numbers.items()
                for name in (("a", "b") if phase == "grad" else (phase,))
            ] + [["grad", "c", "float32", 1, [1.0, 0.0, 0.0, 1.0, 1.0, 1.0]]]

        nothing = {"data": [], "examples": [], "rng": {}, "ties": [], "modules": {}, "born": {}}
        steps = [entries(1.0 + bend * (step == parts_at)) for step in (1, 2)]
        return Training(name, [[{"micro": 1, "entries": of, **nothing}] for of in steps])

    found = answer(find(training("A", 0.0), training("B", 1e-2)))
    assert (found["kind"], found["step"], found["phase"]) == (kind, parts_at, "grad")


def test_a_mistake_is_named_as_a_sentence_as_data_and_by_the_exit_code(shell: Shell) -> None:
    plant = PLANTS["accumulation"]
    words = [word.replace("{s}", "0") for word in plant.words]
    command = ("-m", "ninefold", "diff", "--steps=3", "--fail", "--json=found.json", *words)
    done = shell.run(*command, code=8)
    found = json.loads((shell.folder / "found.json").read_text())
    assert not wrong(plant, found)
    assert done.stdout == found["text"] + "\n"
    assert found["text"].endswith("B adds up 4 micro-batches and does not divide by their number.")


def test_recording_changes_no_loss_and_two_starts_are_equal_bit_for_bit(shell: Shell) -> None:
    said = recorded(shell, "closure")
    assert said == "Nothing differs up to step 6: bit for bit.\n"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kind", "words"),
    [
        ("compiled", "Nothing differs"),
        ("checkpoint", "Nothing differs"),
        ("checkpoint-reentrant", "Nothing differs"),
        ("two", "Nothing differs"),
        ("functional", "Not all could be recorded in A: "),
    ],
)
def test_recording_changes_no_loss_of_other_kinds_of_steps(shell, kind, words) -> None:
    assert words in recorded(shell, kind)


def recorded(shell: Shell, kind: str) -> str:
    """What is said of two starts, whose losses are those of one that is not recorded."""
    line = f"{PYTHON} {HERE}/kinds_of_steps.py {kind}"
    alone = subprocess.run(line.split(), capture_output=True, text=True, check=True)
    done = shell.run("-m", "ninefold", "diff", "--keep=k", line, code=0)
    for log in (shell.folder / "k").glob("*/*.log"):
        losses = log.read_text()
        assert losses
        assert alone.stdout.startswith(losses)
    return done.stdout


def test_a_command_that_takes_no_step_is_an_error_and_so_is_a_third_one(shell: Shell) -> None:
    for words in (("true", "true"), ("a", "b", "c"), ("--resume", "a")):
        done = shell.run("-m", "ninefold", "diff", *words, code=2)
        assert done.stdout == ""
        assert len(done.stderr.splitlines()) == 1


def test_an_option_without_an_effect_is_refused(capsys):
    assert main(("--kill-after=2", "x")) == 2
    line = "error: --kill-after=2: it has no effect without --resume; "
    assert capsys.readouterr().err.startswith(line)


SUMS = """
import sys, torch
torch.manual_seed(0)
net = torch.nn.Linear(4, 2)
optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
for _ in range(9):
    optimizer.zero_grad()
    (net(torch.randn(3, 4) + float(sys.argv[1])) ** 2).mean().backward()
    optimizer.step()
"""


def test_inputs_that_come_from_no_loader_are_told_apart_by_their_values(shell: Shell) -> None:
    (shell.folder / "sums.py").write_text(SUMS)
    command = ("-m", "ninefold", "diff", "--only", "--steps=3")
    done = shell.run(*command, *(f"{PYTHON} sums.py {shift}" for shift in (0, 1)), code=0)
    assert done.stdout.startswith("At step 1: "), done.stdout
