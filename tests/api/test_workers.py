"""`ninefold.time_steps(..., processes="new")`: processes that are new in each round, and their end.

Factories are nested functions here: these are copied by value, so that no process imports pytest.
"""

from __future__ import annotations

import json
import math
import os
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Generator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import ninefold
from ninefold.api import capsule
from ninefold.api.rounds import NewRounds, Values
from ninefold.api.times import times
from ninefold.errors import ConfigError, ResourceError
from tests.api.simulated import SETTINGS, Machine, constant, timed
from tests.conftest import ROOT

NEW: dict[str, Any] = {"processes": "new", "minutes": 0.01, "show": False}
Factory = Callable[[], Any]


def quick() -> Factory:
    def factory() -> Callable[[], None]:
        return lambda: None

    return factory


def alive(process: int) -> bool:
    """Whether a process is there and more than its exit code."""
    try:
        text = Path(f"/proc/{process}/stat").read_text()
    except OSError:
        return False
    return text.rpartition(")")[2].split()[0] != "Z"


def none_left(processes: list[int]) -> bool:
    """Whether they have all ended within ten seconds."""
    deadline = time.monotonic() + 10
    while any(map(alive, processes)) and time.monotonic() < deadline:
        time.sleep(0.05)
    return not any(map(alive, processes))


def test_each_round_has_new_processes_and_the_sentence_says_so(tmp_path: Path) -> None:
    built, torch = tmp_path / "built", tmp_path / "torch"

    def function() -> Callable[[], None]:
        with built.open("a") as file:
            file.write(f"{os.getpid()}\n")
        print("not an answer")
        return lambda: torch.touch() if "torch" in sys.modules else time.sleep(0.001)

    def loop() -> Generator[None, None, None]:
        with built.open("a") as file:
            file.write(f"{os.getpid()}\n")
        while True:
            time.sleep(0.003)
            yield

    found = ninefold.time_steps({"function": function, "loop": loop}, **NEW)
    assert found.rounds == 3
    assert found.best == "function"
    assert found.sentence.startswith("In new processes ")
    assert "trained" not in found.sentence
    rows = found.rows()
    assert list(rows[0]) == ["step", "round", "turn", "order", "seconds", "steps"]
    assert [row["order"] for row in rows] == list(range(len(rows)))
    assert {row["round"] for row in rows} == {0, 1, 2}
    processes = [int(line) for line in built.read_text().splitlines()]
    assert len({*processes, os.getpid()}) == 2 * 3 + 1
    assert not any(map(alive, processes))
    assert not torch.exists()  # what a step does not use is not imported to be waited for


@pytest.mark.parametrize("copied", [True, False])
def test_what_a_step_raises_in_its_process_is_raised_with_its_name_and_traceback(
    copied: bool,
) -> None:
    class Mine(Exception):
        def __init__(self, text: str) -> None:
            super().__init__(text)
            self.held = None if copied else threading.Lock()  # which cannot be copied

    def fails() -> Generator[None, None, None]:
        for _ in range(5):
            yield
        raise Mine("no more")

    with pytest.raises(Mine if copied else RuntimeError) as raised:
        ninefold.time_steps({"a": quick(), "fails": fails}, **NEW)
    assert str(raised.value) == ("no more" if copied else "Mine: no more")
    name, trace = raised.value.__notes__  # type: ignore[attr-defined]
    assert name == "ninefold.time_steps: in the step 'fails'"
    assert "Traceback" in trace
    assert 'raise Mine("no more")' in trace


def test_what_a_factory_returns_that_is_no_step_is_refused_in_one_line() -> None:
    with pytest.raises(ConfigError) as raised:
        ninefold.time_steps({"a": quick(), "b": lambda: None}, **NEW)
    assert str(raised.value).startswith("error: steps['b']=NoneType: what it returned is no step")


@pytest.mark.parametrize("how", ["killed", "left"])
def test_a_process_that_dies_is_one_line_and_what_it_started_ends(how: str, tmp_path: Path) -> None:
    started = tmp_path / "started"

    def dies() -> Callable[[], None]:
        child = os.fork()  # as worker processes of a DataLoader are
        if not child:
            time.sleep(600)
        started.write_text(f"{child}")
        return lambda: os.kill(os.getpid(), signal.SIGKILL) if how == "killed" else os._exit(3)

    with pytest.raises(ResourceError) as raised:
        ninefold.time_steps({"a": quick(), "dies": dies}, **NEW)
    code, said = {"killed": (-9, "was killed (SIGKILL)"), "left": (3, "has ended")}[how]
    assert str(raised.value).startswith(
        f"error: steps['dies']=exit code {code}: its process {said}"
    )
    assert "\n" not in str(raised.value)
    assert none_left([int(started.read_text())])


def test_ctrl_c_in_the_middle_of_a_turn_leaves_no_process(tmp_path: Path) -> None:
    built, caller = tmp_path / "built", os.getpid()

    def endless() -> Generator[None, None, None]:
        with built.open("a") as file:
            file.write(f"{os.getpid()}\n")
        yield
        os.kill(caller, signal.SIGINT)
        time.sleep(600)

    with pytest.raises(KeyboardInterrupt):
        ninefold.time_steps({"a": quick(), "endless": endless}, **NEW)
    assert not alive(int(built.read_text()))


def test_a_process_ends_when_nobody_can_ask_it_any_more(tmp_path: Path) -> None:
    path = tmp_path / "own" / "objects.bin"
    sha256 = capsule.write(path, {"steps['a']": quick()}, {"steps['a']": "quick"})
    command = [
        sys.executable,
        "-m",
        "ninefold.api.worker",
        str(os.getpid()),
        str(path),
        sha256,
        "a",
    ]
    with subprocess.Popen(
        command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        assert json.loads(process.stdout.readline()) == {"ready": True}
        process.stdin.write(b'{"lead": 1, "timed": 10}\n')
        process.stdin.flush()
        assert json.loads(process.stdout.readline())["seconds"] > 0
        process.stdin.close()
        assert process.wait(10) == 0


def test_under_a_launcher_new_processes_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TORCHELASTIC_RUN_ID", "1")
    with pytest.raises(ConfigError) as raised:
        ninefold.time_steps({"a": quick(), "b": quick()}, **NEW)
    assert str(raised.value).startswith("error: processes=new: torchrun has made this process one")


def turns_taken(
    seconds: Callable[[str], float], apart: float, known: Callable[[Values], bool]
) -> tuple[NewRounds, float]:
    """Rounds of steps that take so many seconds in a new process, and their seconds of turns."""
    rounds, elapsed = NewRounds(["a", "b"], 1.0, 0.04, known), 0.0
    while not rounds.over:
        rounds.start(elapsed, apart)
        step = {name: seconds(name) for name in "ab"}
        while (block := rounds.block) is not None:
            elapsed += sum((turn.lead + turn.timed) * step[turn.step] for turn in block)
            rounds.took([step[turn.step] for turn in block], elapsed)
    assert len(rounds.values()["a"]) == rounds.done
    return rounds, elapsed


def test_rounds_are_as_many_as_starting_leaves_time_for_and_at_least_three() -> None:
    for apart, expected in ((1.0, 20), (10.0, 6), (100.0, 3)):
        rounds, elapsed = turns_taken(lambda name: 0.001, apart, lambda found: False)
        assert rounds.done == expected
        assert 59 < elapsed < 61
    rounds, elapsed = turns_taken(lambda name: 5.0, 20.0, lambda found: False)
    assert rounds.done == 3
    assert elapsed > 60


def verdicts(factor: float, tries: int) -> Counter[str]:
    """The verdicts on two steps whose processes differ by 2 % (sd), b `factor` times as long."""
    found = Counter[str]()
    for seed in range(tries):
        draw = np.random.default_rng(seed)
        rounds, _ = turns_taken(
            lambda name, draw=draw: (  # type: ignore[misc]
                0.01 * (factor if name == "b" else 1.0) * math.exp(0.02 * draw.standard_normal())
            ),
            1.0,
            lambda values: times(values, (), SETTINGS, None).known,
        )
        found[times(rounds.values(), (), SETTINGS, None).pairs[0].verdict] += 1
    return found


def test_what_differs_from_process_to_process_makes_no_false_winner() -> None:
    equal = verdicts(1.0, tries=20)
    assert equal["slower"] + equal["faster"] <= 3
    assert verdicts(1.05, tries=20)["slower"] >= 18


@pytest.mark.slow
def test_equal_steps_in_new_processes_get_a_false_verdict_in_at_most_5_percent() -> None:
    equal, slower = verdicts(1.0, tries=400), verdicts(1.05, tries=400)
    print(dict(equal), dict(slower))
    one = Counter[str]()  # what one process makes of the same
    for seed in range(200):
        a, b = 0.01 * np.exp(0.02 * np.random.default_rng(seed).standard_normal(2))
        one[timed(Machine(seed), {"a": constant(a), "b": constant(b)}).pairs[0].verdict] += 1
    print("one process", dict(one))
    assert equal["slower"] + equal["faster"] <= 0.05 * 400


SCRIPT = """
import os, sys, time
import torch
import ninefold

net = torch.nn.Linear(8, 8)

def factory():
    print("PROCESS", os.getpid(), file=sys.stderr, flush=True)
    def step():
        net(torch.ones(1, 8)).sum().backward()
        if LONG:
            time.sleep(0 if step.first else 600)
            step.first = False
    step.first = True
    return step

found = ninefold.time_steps({"a": factory, "b": factory}, minutes=0.02, processes="new")
"""


@pytest.mark.slow
def test_a_script_needs_no_main_guard() -> None:
    done = subprocess.run(
        [sys.executable, "-c", f"LONG = False\n{SCRIPT}"],
        cwd=ROOT, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("In new processes") == 1
    assert done.stderr.count("PROCESS") == 2 * 3


@pytest.mark.slow
def test_processes_end_with_their_caller_in_the_middle_of_a_turn_too(tmp_path: Path) -> None:
    with subprocess.Popen(
        [sys.executable, "-c", f"LONG = True\n{SCRIPT}"],
        cwd=ROOT, stderr=subprocess.PIPE, stdout=subprocess.DEVNULL, text=True,
        env={**os.environ, "TMPDIR": str(tmp_path)},  # in which it leaves its file
    ) as caller:  # fmt: skip
        assert caller.stderr is not None
        said = (line.split() for line in caller.stderr)
        built = (int(words[1]) for words in said if words[:1] == ["PROCESS"])
        processes = [next(built), next(built)]
        time.sleep(3.0)
        assert all(map(alive, processes))
        caller.kill()
        assert none_left(processes)
