"""Whole runs, one after another, in an order that every second round reverses."""

from __future__ import annotations

import time
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path
from typing import NamedTuple

from ninefold.api.rounds import LOOKS, MAX_ROUNDS
from ninefold.process import poll_until, scratch
from ninefold.study.turn_plan import mirrored

from .contestant import Command, last_line
from .engine import LEAST_ROUNDS, Found, Options
from .guardian import TOKEN, Guardian, kill

LOOK_SECONDS = 0.02


class Ran(NamedTuple):
    """A whole run. seconds: that it took. log: its output. begin: when, in Unix time."""

    seconds: float
    log: Path
    begin: float


class Runs:
    """Runs commands from their start to their end. keep: the folder for their output."""

    def __init__(self, keep: Path) -> None:
        self._keep, self._scratch = keep, scratch()
        self._guardian = Guardian(self._scratch)

    def run(self, command: Command, number: int) -> Ran:
        """Run a command with a number in the place of {seed}. Raises ConfigError if it fails."""
        log = self._keep / command.name / f"{number + 1}.log"
        log.parent.mkdir(parents=True, exist_ok=True)
        token = str(self._scratch / str(number))
        begin, began = time.time(), time.monotonic()
        process = command.start(number, log, {TOKEN: token})
        try:
            poll_until(lambda: process.poll() is not None, interval=LOOK_SECONDS)
        finally:
            seconds = time.monotonic() - began
            kill(token, process.pid)
        if process.returncode:
            raise command.failure(
                f"it ended with code {process.returncode}; its output ends: {last_line(log)}; "
                f"correct it, see {log}"
            )
        return Ran(seconds, log, begin)

    def close(self) -> None:
        """End what is left."""
        self._guardian.close()


def time_whole_runs(commands: Sequence[Command], options: Options, keep: Path) -> Found:
    """Time whole runs in rounds until the answer is known or the time is up. Raises Failure."""
    found, began = Found(commands, options), time.monotonic()
    with closing(Runs(keep)) as runs:
        for number in range(MAX_ROUNDS):
            late = found.seconds * (1 + 1 / max(number, 1)) > 60 * options.minutes
            if late and number >= LEAST_ROUNDS:
                break
            for command in mirrored([*commands], "whole", number):
                ran = runs.run(command, number)
                end = ran.begin + ran.seconds
                found.log.add(
                    command.name, number, seconds=ran.seconds, steps=1, begin=ran.begin, end=end
                )
                found.cpu.append(None)
                found.places.append(0)
                found.counted_steps[command.name] += 1
            found.rounds, found.seconds = number + 1, time.monotonic() - began
            if found.rounds in LOOKS and options.enough(found.times()):
                break
    return found
