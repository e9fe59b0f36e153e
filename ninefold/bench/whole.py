"""Whole runs, one after another, in an order that every second round reverses."""

from __future__ import annotations

import time
from pathlib import Path

from ninefold.bench.contestant import Command, last_line
from ninefold.bench.engine import Found
from ninefold.bench.guardian import TOKEN, kill
from ninefold.process import scratch, telling
from ninefold.tournament.budget import LEAST_ROUNDS, LOOKS, MAX_ROUNDS
from ninefold.tournament.plan import mirrored


def run_whole(command: Command, number: int, keep: Path) -> float:
    """Run a command to its end, with a number in the place of {seed}; return how long that took.

    keep: the folder for its output. Raises ConfigError if it fails.
    """
    log, token = command.log(keep, number), str(scratch() / "whole")
    began = time.monotonic()
    process = command.start(number, log, {TOKEN: token})
    try:
        with telling(f"run {number + 1} of {command.name}; its output is in {log}"):
            code = process.wait()
    finally:
        seconds = time.monotonic() - began
        kill(token, process)
    if code:
        raise command.failure(
            f"it ended with code {code}; its output ends: {last_line(log)}; correct it, see {log}"
        )
    return seconds


def time_whole_runs(found: Found, keep: Path) -> None:
    """Time whole runs in rounds until the answer is known or the time is up. Raises Failure."""
    began = time.monotonic()
    for number in range(MAX_ROUNDS):
        each = found.seconds / max(number, 1)
        late = number >= LEAST_ROUNDS and found.seconds + each > 60 * found.minutes
        if late or (number in LOOKS and found.is_enough()):
            break
        for command in mirrored([*found.commands], "whole", number):
            begin = time.time()
            took = run_whole(command, number, keep)
            own = {"seconds": took, "steps": 1, "begin": begin, "end": begin + took}
            found.log.add(command.name, number, **own)
        found.rounds, found.seconds = number + 1, time.monotonic() - began
