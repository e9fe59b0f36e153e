"""The gates: whether a command is slower than another, or takes more memory, by more than is
allowed, and their words."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple

from ninefold.answer.needed import rounds_for_side
from ninefold.answer.words import interval, may_be, shown
from ninefold.errors import Failure, Slower, Undecided
from ninefold.numbers import counted
from ninefold.stats.looks import looks_until
from ninefold.stats.statistics import compare
from ninefold.stats.verdicts import Pair, Settings, Timings
from ninefold.types import LEAST_ROUNDS

WORST_FIRST = FAILS, UNDECIDED, PASSES = "fails", "undecided", "passes"
TIME, MEMORY = "max-slowdown", "max-memory"  # options


class Gate(NamedTuple):
    """What one gate has measured. option: that asks for it. allowed: a share."""

    option: str
    pair: Pair
    allowed: float

    @property
    def verdict(self) -> str:
        """What the interval of the speedup shows: it is above the least allowed, below, or
        neither.
        """
        low, high = self.pair.low, self.pair.high
        if low is None or high is None:
            return UNDECIDED
        return PASSES if low > self.least else FAILS if high < self.least else UNDECIDED

    @property
    def limit(self) -> str:
        """What is allowed, in the numbers that are shown."""
        most = f"at most {1 + self.allowed:.3f} times is"
        return f"{most if self.option == MEMORY else f'at least {shown(self.least)} is'} allowed"

    @property
    def least(self) -> float:
        """The speedup of what takes as much longer as is allowed."""
        return 1 / (1 + self.allowed)


def clause(gate: Gate, settings: Settings, what: str = "") -> str:
    """What a gate shows. what: in which else than time."""
    pair, share = gate.pair, f"{100 * gate.allowed:g} %"
    if gate.option == MEMORY:
        return f"{_memory(pair)} ({share} more is allowed)"
    found = {
        PASSES: f"{pair.second} is not {share} slower than {pair.first}{what}",
        FAILS: f"{pair.second} is more than {share} slower than {pair.first}{what}",
        UNDECIDED: f"{may_be(pair)}{what}, and {share} slower is allowed",
    }[gate.verdict]
    sure = f"{shown(pair.speedup)}; {settings.confidence:g} % interval {interval(pair)}"
    return f"{found} ({sure})"


def failure(gate: Gate, said: str, minutes: float, made: int) -> Failure | None:
    """What ends a gate that does not pass. said: as of `clause`. minutes: that took the rounds that
    were made.
    """
    share = f"{100 * gate.allowed:g}%"
    if gate.verdict == FAILS:
        return Slower(gate.option, share, said, gate.limit, "see what changed, or allow more")
    if gate.verdict == PASSES:
        return None
    rounds = rounds_for_side(gate.pair, gate.least, made)
    if 0 < gate.pair.rounds < LEAST_ROUNDS:
        rounds = made + LEAST_ROUNDS - gate.pair.rounds
    more = f"--minutes {math.ceil(minutes * rounds / made)}, " if rounds else ""
    do = f"{more}a quieter runner, or more to be allowed"
    return Undecided(gate.option, share, f"not decided after {counted(made, 'round')}", said, do)


def memory_pair(
    names: Sequence[str],
    memory: Mapping[str, Mapping[int, int]],
    looks: Mapping[int, float],
    rounds: int,
    settings: Settings,
) -> Pair:
    """Compare the memory of two commands as their times are compared, at the same looks.

    A ratio that is the same in each round, as on a GPU, is its own interval. memory: bytes, by
    command and round. looks, rounds: as of `looks_until`.
    """
    seen = [
        Timings(
            {name: {n: float(b) for n, b in memory.get(name, {}).items() if n < number}
             for name in names},
            shares=shares,
        )
        for number, shares in looks_until(looks, rounds)
    ]  # fmt: skip
    [pair] = compare(seen, {}, settings).seconds
    same = pair.rounds >= LEAST_ROUNDS and pair.p is None
    return replace(pair, low=pair.speedup, high=pair.speedup) if same else pair


def _memory(pair: Pair) -> str:
    """How many times the memory of the first command the second takes, with the interval."""
    if pair.speedup is None:
        return f"the memory of {pair.second} is not known"
    said = f"{pair.second} takes {1 / pair.speedup:.3f} times the memory of {pair.first}"
    if pair.low is None or pair.high is None:
        return said
    return f"{said}, {1 / pair.high:.3f} to {1 / pair.low:.3f}"
