"""Commands whose steps wait for a clock get no verdict by turns."""

from __future__ import annotations

import json
import sys

import pytest

from tests.conftest import Shell

STEPS = """
import sys, time

def step():
    kind, now = sys.argv[1], time.perf_counter()
    STEPS[kind](now)
    LAST[:] = [time.perf_counter()]

def deadline(now):
    DUE[:] = [(DUE or [time.time()])[0] + 0.02]
    time.sleep(max(0.0, DUE[0] - time.time()))

def cold(now):
    time.sleep(0.003 + 0.02 * (now - LAST[0] > 0.05 if LAST else 1))

def longer(now):
    COUNT[0] += 1
    time.sleep(0.002 + 1e-5 * COUNT[0])

DUE, LAST, COUNT = [], [], [0]
STEPS = {each.__name__: each for each in (deadline, cold, longer)}
"""
TRAIN = "import steps\n\nwhile True:\n    steps.step()\n"
QUICK = ("-m", "ninefold", "bench", "--step=steps:step")


@pytest.fixture
def scripts(shell: Shell) -> Shell:
    for name, text in (("steps", STEPS), ("train", TRAIN)):
        (shell.folder / f"{name}.py").write_text(text)
    return shell


def command(*words: str) -> str:
    return " ".join([sys.executable, "train.py", *words])


@pytest.mark.slow
def test_steps_that_wait_for_a_deadline_get_no_verdict_and_a_line_says_what_does(
    scripts: Shell,
) -> None:
    words = (command("deadline"), command("cold"), "--json=found.json", "--markdown=found.md")
    done = scripts.run(*QUICK, "--minutes=0.4", "--name=paced", "--name=not", *words, code=9)
    assert done.stdout.startswith("Not decided: paced catches up after each pause")
    assert "next: --apart, one command at a time" in done.stdout.splitlines()[-1]
    assert f"error: command={command('deadline')}: its steps catch up after a pause" in done.stderr
    assert "--whole times full runs" in done.stderr
    found = json.loads((scripts.folder / "found.json").read_text())
    assert found["exit"] == 9
    assert [each["catches_up"] for each in found["commands"]] == [True, False]
    assert [(pair["low"], pair["verdict"]) for pair in found["pairs"]] == [(None, "too few rounds")]
    assert "Not decided: " in (scripts.folder / "found.md").read_text()


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["cold", "longer"])
def test_steps_that_are_cold_after_a_pause_or_take_ever_longer_are_compared(
    scripts: Shell, kind: str
) -> None:
    scripts.run(*QUICK, "--minutes=0.5", "--json=found.json", *[command(kind)] * 2, code=0)
    found = json.loads((scripts.folder / "found.json").read_text())
    (pair,) = found["pairs"]
    assert pair["rounds"] >= 1
    assert 0.5 < pair["speedup"] < 2
    assert pair["low"] <= 1.02 <= 1.04 * pair["high"]
    assert not any(each["catches_up"] for each in found["commands"])


@pytest.mark.slow
def test_steps_that_wait_for_a_deadline_are_compared_where_none_is_paused_for_another(
    scripts: Shell,
) -> None:
    options = ("--minutes=0.5", "--apart", "--json=found.json")
    scripts.run(*QUICK, *options, *[command("deadline")] * 2, code=0)
    (pair,) = json.loads((scripts.folder / "found.json").read_text())["pairs"]
    assert 0.9 < pair["speedup"] < 1.1
