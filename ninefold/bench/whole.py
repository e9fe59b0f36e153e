"""Whole runs, one after another, in an order that every second round reverses."""

from __future__ import annotations

import math
import time
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path

from ninefold.bench.command import Command, exit_code_of_pipe
from ninefold.bench.guardian import TOKEN, kill
from ninefold.bench.measurements import Measurements
from ninefold.bench.printed import last_line
from ninefold.process import scratch
from ninefold.tournament.budget import Budget
from ninefold.tournament.contestant import Contestant, Entries, Pace, Taken, WarmUp
from ninefold.tournament.plan import Asked, Turn
from ninefold.tournament.rounds import Tournament
from ninefold.tournament.taken import TakenTurn
from ninefold.waits import telling


def run_whole(command: Command, number: int, keep: Path, variables: Mapping[str, str]) -> float:
    """Run a command to its end, with a number in the place of {seed}; return how long that took.

    keep: the folder for its output. variables: besides its own. Raises ConfigError if it fails,
    ResourceError if it is killed.
    """
    log, token = command.log(keep, number), str(scratch() / "whole")
    began = time.monotonic()
    process = command.start(number, log, {TOKEN: token, **variables})
    try:
        with telling(f"run {number + 1} of {command.name}; its output is in {log}"):
            code = exit_code_of_pipe(process.wait())
    finally:
        seconds = time.monotonic() - began
        kill(token, process)
    if code:
        said = f"its output ends: {last_line(log)}"
        raise command.ended(code, f"it ended with code {code}", said, f"correct it, see {log}")
    return seconds


class WholeRuns(Entries):
    """Commands that run from beginning to end in a turn: the entries of a tournament."""

    def __init__(self, measured: Measurements, keep: Path) -> None:
        self.measured, self.keep, self.done = measured, keep, measured.rounds
        budget = Budget(seconds=60.0 * measured.options.minutes, turns=1)
        self._tournament = Tournament(
            self, budget, measured.look, measured.seed, looks=measured.looks, log=measured.log
        )

    def run(self) -> None:
        """Make the rounds. Raises Failure; KeyboardInterrupt, when the command has ended."""
        self._tournament.run()

    @property
    def names(self) -> Sequence[str]:
        return self.measured.names

    def start(self, left: Sequence[str], number: int) -> Sequence[Contestant]:
        commands = {command.name: command for command in self.measured.commands}
        return [WholeRun(commands[name], number, self.keep) for name in left]

    def agree(self, turn: Turn, taken: Taken) -> Taken:
        return taken._replace(others=None)  # which processes are its own is not known

    def round_ended(self, number: int) -> None:
        self.done = number + 1
        self.measured.ends[self.done] = self._tournament.elapsed


class WholeRun:
    """A command whose turn is a run: a contestant."""

    steps, waits, processes = None, False, list[int]()

    def __init__(self, command: Command, number: int, keep: Path) -> None:
        self.name = command.name
        self._run = partial(run_whole, command, number, keep, {})

    def asks(self, step: float) -> Asked:
        return Asked(step, 0.0, several=False, workers=0)

    def warm_up(self, known: Pace | None) -> WarmUp:
        yield from ()
        return Pace(math.inf, math.inf)  # a turn is one step

    def turn(self, turn: Turn) -> float:
        return self._run()

    def end(self, turns: Sequence[TakenTurn], stretch: float | None) -> None:
        pass

    def close(self) -> None:
        pass
