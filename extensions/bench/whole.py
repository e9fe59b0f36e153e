"""Whole runs, one after another, in an order that every second round reverses."""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from ninefold.api.rounds import MAX_ROUNDS
from ninefold.process import poll_until, scratch
from ninefold.study.turn_plan import mirrored

from .contestant import Command, last_line
from .engine import LEAST_ROUNDS, Found, Options
from .guardian import TOKEN, kill

LOOK_SECONDS = 0.02


class Ran(NamedTuple):
    """A whole run. seconds: that it took. log: its output. begin: when, in Unix time."""

    seconds: float
    log: Path
    begin: float


def run_whole(command: Command, number: int, keep: Path) -> Ran:
    """Run a command to its end, with a number in the place of {seed}.

    keep: the folder for its output. Raises ConfigError if it fails.
    """
    log = keep / command.name / f"{number + 1}.log"
    log.parent.mkdir(parents=True, exist_ok=True)
    token = str(scratch() / command.name)
    begin, began = time.time(), time.monotonic()
    process = command.start(number, log, {TOKEN: token})
    try:
        poll_until(lambda: process.poll() is not None, interval=LOOK_SECONDS)
    finally:
        seconds = time.monotonic() - began
        kill(token, process)
    if process.returncode:
        raise command.failure(
            f"it ended with code {process.returncode}; its output ends: {last_line(log)}; "
            f"correct it, see {log}"
        )
    return Ran(seconds, log, begin)


def time_whole_runs(commands: Sequence[Command], options: Options, keep: Path) -> Found:
    """Time whole runs in rounds until the answer is known or the time is up. Raises Failure."""
    found, began = Found(commands, options), time.monotonic()
    for number in range(MAX_ROUNDS):
        late = found.seconds * (1 + 1 / max(number, 1)) > 60 * options.minutes
        if late and number >= LEAST_ROUNDS:
            break
        for command in mirrored([*commands], "whole", number):
            ran = run_whole(command, number, keep)
            end = ran.begin + ran.seconds
            found.log.add(
                command.name, number, seconds=ran.seconds, steps=1, begin=ran.begin, end=end
            )
            found.cpu.append(None)
            found.places.append(0)
            found.counted_steps[command.name] += 1
        found.rounds, found.seconds = number + 1, time.monotonic() - began
        if found.is_enough():
            break
    return found
