"""One tournament for what the three doors of ninefold compare."""

from __future__ import annotations

import os
import re

import pytest

from tests.conftest import ROOT, Shell

THEIRS = """
import torch
model = torch.nn.Linear(64, 64)
optimizer = torch.optim.SGD(model.parameters(), 0.01)
while True:
    model(torch.randn(8, 64)).sum().backward()
    optimizer.step()
"""
MIXED = """
import sys, time
from contextlib import ExitStack, closing
from pathlib import Path
from benchmarks import ours
from ninefold.api.session import StepTaker, WarmUps
from ninefold.answer.facts import facts_of
from ninefold.answer.times import times
from ninefold.bench.command import Command
from ninefold.bench.measurements import Measurements
from ninefold.bench.rounds import Bench
from ninefold.config.spec import RunSpec
from ninefold.launch import forkserver
from ninefold.launch.turns import TurnTaker
from ninefold.stats.verdicts import Settings
from ninefold.tournament.budget import Budget
from ninefold.tournament.contestant import Entries, Look
from ninefold.tournament.rounds import Tournament

class Mixed(Entries):
    names, done = ["configuration", "function", "script"], 0

    def start(self, left, number):
        folder = Path(f"run{number}")
        folder.mkdir()
        spec = RunSpec("time", job.text, folder, started=time.time())
        return [
            alive.enter_context(closing(TurnTaker(spec, 1, "configuration"))),
            StepTaker("function", sleep, warm_ups),
            *bench.start(["script"], number),
        ]

    def round_ended(self, number):
        self.done += 1

def sleep(turn):
    time.sleep(0.02 * turn.steps)
    return 0.02

if __name__ == "__main__":
    job = ours.job("clock.warmup=2", "logger=quiet")
    forkserver.start(job.resolved)
    command = Command(f"{sys.executable} theirs.py", "script")
    bench = Bench(Measurements([command]), Path("kept"))
    warm_ups = WarmUps(["function"], lambda: 0.0, 1.0)
    with ExitStack() as alive:
        mixed = Mixed()
        tournament = Tournament(mixed, Budget(seconds=20.0, turns=2, rounds=3), lambda: Look(False))
        tournament.run()
    found = times(facts_of(Mixed.names, tournament.log.turns, {}, mixed.done, Settings()))
    print(tournament.ended, mixed.done)
    print({row["seconds"] for row in found.rows() if row["step"] == "function"})
    print(found)
"""


@pytest.mark.slow
def test_a_configuration_a_function_and_a_foreign_script_are_compared_in_one_table(
    shell: Shell,
) -> None:
    (shell.folder / "theirs.py").write_text(THEIRS)
    (shell.folder / "mixed.py").write_text(MIXED)
    path = f"{shell.folder}:{ROOT}:{os.environ.get('PYTHONPATH', '')}"
    done = shell.run("mixed.py", env={"PYTHONPATH": path})
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    begin = next(n for n, line in enumerate(lines) if re.fullmatch(r"[a-z]+ \d+", line))
    turns, sentence, _, _, *rows = lines[begin + 1 :][:7]
    assert "decided" in sentence or "the fastest" in sentence
    assert {row.split()[0] for row in rows} == {"configuration", "function", "script"}
    assert turns == "{0.02}"  # seconds of a step may follow the speedups, those of its turns do not
    assert not shell.survivors()
