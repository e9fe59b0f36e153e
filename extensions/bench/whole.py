"""Whole runs, one after another, in an order that every second round reverses."""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from ninefold.api.rounds import MAX_ROUNDS
from ninefold.process import scratch
from ninefold.study.turn_plan import mirrored

from .contestant import Command, last_line
from .engine import LEAST_ROUNDS, Found, Options
from .guardian import TOKEN, kill


class Ran(NamedTuple):
    """A whole run. seconds: that it took. log: its output."""

    seconds: float
    log: Path


def run_whole(command: Command, number: int, keep: Path) -> Ran:
    """Run a command to its end, with a number in the place of {seed}.

    keep: the folder for its output. Raises ConfigError if it fails.
    """
    log, token = command.log(keep, number), str(scratch() / "whole")
    began = time.monotonic()
    process = command.start(number, log, {TOKEN: token})
    try:
        code = process.wait()
    finally:
        seconds = time.monotonic() - began
        kill(token, process)
    if code:
        raise command.failure(
            f"it ended with code {code}; its output ends: {last_line(log)}; correct it, see {log}"
        )
    return Ran(seconds, log)


def time_whole_runs(commands: Sequence[Command], options: Options, keep: Path) -> Found:
    """Time whole runs in rounds until the answer is known or the time is up. Raises Failure."""
    found, began = Found(commands, options), time.monotonic()
    for number in range(MAX_ROUNDS):
        late = found.seconds * (1 + 1 / max(number, 1)) > 60 * options.minutes
        if late and number >= LEAST_ROUNDS:
            break
        for command in mirrored([*commands], "whole", number):
            begin = time.time()
            seconds = run_whole(command, number, keep).seconds
            found.log.add(
                command.name, number, seconds=seconds, steps=1, begin=begin, end=begin + seconds
            )
            found.cpu.append(None)
            found.places.append(0)
        found.rounds, found.seconds = number + 1, time.monotonic() - began
        if found.is_enough():
            break
    return found
