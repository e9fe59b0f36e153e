"""golden.json has what simulated tournaments found when studies, steps and commands had a loop of
rounds each; the one that they share finds the same.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from ninefold.bench import engine
from ninefold.bench.contestant import Command
from ninefold.tournament import rounds
from tests.api.simulated import Machine, constant, switching, timed
from tests.conftest import ROOT
from tests.tournament.simulated import CLOCK, NoLoad, command

GOLDEN = json.loads(Path(__file__).with_name("golden.json").read_text())
MACHINES: dict[str, Callable[[int], dict[str, Any]]] = {
    "quiet": lambda seed: {},
    "noisy": lambda seed: {"noise": 0.2},
    "half busy": lambda seed: {"slow": switching(seed, 0.5, 0.5, 2.0)},
    "bursts": lambda seed: {"slow": switching(seed, 1.0, 9.0, 2.0)},
    "drift": lambda seed: {"slow": lambda now: 1 + now / 60},
    "own": lambda seed: {"own": 0.05},
}
# Seconds of a step, of a start, minutes, and whether commands are alive one after another.
BENCHES: dict[str, tuple[Any, float, bool]] = {
    "five_percent": (("a", 0.05, 0.01, {"A": 0.02, "B": 0.021, "C": 0.02}, 2.0), 2.0, False),
    "noisy": (("b", 0.12, 0.01, {"A": 0.02, "B": 0.021, "C": 0.02}, 2.0), 2.0, False),
    "large": (("c", 0.10, 0.02, {"A": 0.02, "B": 0.03}, 1.0), 1.0, False),
    "rough": (("d", 0.08, 0.07, {"A": 0.1, "B": 0.1}, 3.0), 2.0, False),
    "short": (("e", 0.08, 0.02, {"A": 0.05, "B": 0.07}, 8.0), 0.5, False),
    "equal": (("g", 0.03, 0.005, {"A": 0.02, "B": 0.02}, 0.5), 1.0, False),
}
NINE = ("parallel=none,dp,ddp", "amp=fp32,autocast,scaler", "study.pairs=all")
STUDIES: dict[str, tuple[str, ...]] = {  # seed, noise of turns and of processes, words
    "nine_quiet": ("a", "0.04", "0", *NINE, "study.time_budget=1.75"),
    "nine_noisy": ("b", "0.15", "0.02", *NINE, "study.time_budget=1.75"),
    "nine_best": ("c", "0.1", "0.01", *NINE[:2], "study.pairs=best", "study.time_budget=1.75"),
    "six_best": ("d", "0.1", "0.01", "parallel=none,ddp", NINE[1], "study.pairs=best",
                 "study.time_budget=1"),
    "two_all": ("e", "0.06", "0.01", "parallel=none,ddp", "amp=fp32", "study.pairs=all",
                "study.time_budget=0.5"),
    "close": ("f", "0.2", "0.03", "parallel=none,dp", "amp=fp32,autocast", "study.pairs=best",
              "study.time_budget=1"),
    "short": ("g", "0.1", "0.02", *NINE, "study.time_budget=0.3"),
    "fixed": ("h", "0.1", "0.02", "parallel=none,ddp", "amp=fp32,autocast", "study.pairs=all",
              "study.time_budget=0.5", "study.turns=4"),
}  # fmt: skip


@pytest.mark.parametrize("then", GOLDEN["steps"], ids=lambda then: f"{then['machine']}")
def test_steps_are_timed_in_as_many_rounds_as_before_with_the_same_verdicts(
    then: dict[str, Any],
) -> None:
    steps = {"abc"[i]: constant(0.01 * each) for i, each in enumerate(then["factors"])}
    machine = Machine(then["seed"], **MACHINES[then["machine"]](then["seed"] + 1000))
    found = timed(machine, steps, then["minutes"])
    assert [[p.first, p.second, p.verdict] for p in found.pairs] == then["verdicts"]
    assert found.rounds == then["rounds"]


@pytest.mark.parametrize("name", BENCHES)
def test_commands_are_compared_in_as_many_rounds_as_before_with_the_same_verdicts(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (given, minutes, apart), then = BENCHES[name], GOLDEN["bench"][name]
    commands = [Command("true", name) for name in given[3]]
    found = engine.Found(commands, minutes, 0.02, "time", apart, None)
    monkeypatch.setattr(rounds, "NeighborLoad", NoLoad)
    monkeypatch.setattr(engine, "Contestant", command(*given))
    monkeypatch.setattr(engine, "time", CLOCK)
    monkeypatch.setattr(engine, "poll_until", lambda call, **more: call())
    monkeypatch.setattr(engine.Alive, "_look", lambda self: None)
    on_clock = partial(rounds.Tournament, clock=CLOCK.monotonic)
    monkeypatch.setattr(engine, "Tournament", on_clock)
    engine.Bench(found, tmp_path).run()
    pairs = found.pairs(found.times())
    assert [[p.first, p.second, p.verdict] for p in pairs] == then["verdicts"]
    assert found.rounds == then["rounds"]


@pytest.mark.parametrize(
    "name",
    [n if n in ("two_all", "short") else pytest.param(n, marks=pytest.mark.slow) for n in STUDIES],
)
def test_configurations_are_timed_in_as_many_rounds_as_before_with_the_same_verdicts(
    name: str, tmp_path: Path
) -> None:
    then, (*noise, parallel, amp, pairs, minutes, turns) = (
        GOLDEN["study"][name],
        [*STUDIES[name], "study.turns=auto"][:8],
    )
    words = [parallel, amp, pairs, minutes, turns, "study.ask=[time]", "threads=1"]
    words += ["launch.cpu_processes=2", "dataset.limit=128", "batch_size=32", "epochs=1"]
    simulated = [sys.executable, "-m", "tests.tournament.simulated", *noise]
    subprocess.run(
        [*simulated, "-m", *words, "hydra.sweep.dir=study"],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        check=True,
        capture_output=True,
    )
    sweep = json.loads((tmp_path / "study" / "sweep.json").read_text())
    rounds = sweep["timing"]
    assert [len(each["runs"]) for each in rounds] == then["cells"]
    report = json.loads((tmp_path / "study" / "report" / "report.json").read_text())
    assert sorted(verdicts(report)) == then["verdicts"]


def verdicts(found: Any) -> list[list[str]]:
    """First, second and verdict of all pairs in a report."""
    if isinstance(found, list):
        return [pair for each in found for pair in verdicts(each)]
    if not isinstance(found, dict):
        return []
    own = [[*map(str, (found["first"], found["second"], found["verdict"]))]] if {
        "first", "second", "verdict"} <= found.keys() else []  # fmt: skip
    return own + verdicts([*found.values()])
