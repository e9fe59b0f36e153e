"""The gates: whether a command is slower than another, or takes more memory, by more than is
allowed, and their words."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace

from ninefold.answer.needed import rounds_for_side
from ninefold.answer.words import interval, may_be, shown
from ninefold.errors import Failure, Slower, Undecided
from ninefold.numbers import counted
from ninefold.stats.looks import looks_until
from ninefold.stats.statistics import compare
from ninefold.stats.verdicts import Pair, Settings, Timings
from ninefold.types import LEAST_ROUNDS

WORST_FIRST = FAILS, UNDECIDED, PASSES = "fails", "undecided", "passes"


def verdict(pair: Pair, allowed: float) -> str:
    """What the interval of the speedup shows: it is above the least allowed, below, or neither."""
    if pair.low is None or pair.high is None:
        return UNDECIDED
    least = least_speedup(allowed)
    return PASSES if pair.low > least else FAILS if pair.high < least else UNDECIDED


def least_speedup(allowed: float) -> float:
    """The speedup of what takes as much longer as is allowed, a share."""
    return 1 / (1 + allowed)


def clause(pair: Pair, allowed: float, settings: Settings, what: str = "") -> str:
    """What the gate on time shows. what: in which else than time."""
    state, share = verdict(pair, allowed), f"{100 * allowed:g} %"
    found = {
        PASSES: f"{pair.second} is not {share} slower than {pair.first}{what}",
        FAILS: f"{pair.second} is more than {share} slower than {pair.first}{what}",
        UNDECIDED: f"{may_be(pair)}{what}, and {share} slower is allowed",
    }[state]
    sure = f"{shown(pair.speedup)}; {settings.confidence:g} % interval {interval(pair)}"
    return f"{found} ({sure})"


def failure(
    pair: Pair, allowed: float, minutes: float, made: int, what: str = ""
) -> Failure | None:
    """What ends a gate that does not pass. minutes: that took the rounds that were made."""
    share, state, known = f"{100 * allowed:g}%", verdict(pair, allowed), interval(pair)
    if state == PASSES:
        return None
    if state == FAILS:
        return Slower(
            "max-slowdown",
            share,
            f"{pair.second} is {shown(pair.speedup)} times as fast as {pair.first}{what}",
            f"at least {shown(least_speedup(allowed))} is allowed, and the interval is {known}",
            "see what changed, or allow more",
        )
    rounds = rounds_for_side(pair, least_speedup(allowed), made)
    more = f"--minutes {math.ceil(minutes * rounds / made)}, " if rounds else ""
    wrong = f"not decided after {counted(made, 'round')}"
    do = f"{more}a quieter runner, or more to be allowed"
    return Undecided("max-slowdown", share, wrong, f"the interval is {known}", do)


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


def memory_clause(pair: Pair, allowed: float) -> str:
    """What the gate on memory shows."""
    return f"{_memory(pair)} ({100 * allowed:g} % more is allowed)"


def _memory(pair: Pair) -> str:
    """How many times the memory of the first command the second takes, with the interval."""
    if pair.speedup is None:
        return f"the memory of {pair.second} is not known"
    said = f"{pair.second} takes {1 / pair.speedup:.3f} times the memory of {pair.first}"
    if pair.low is None or pair.high is None:
        return said
    return f"{said}, {1 / pair.high:.3f} to {1 / pair.low:.3f}"


def memory_failure(pair: Pair, allowed: float) -> Failure | None:
    """What ends a gate on memory that does not pass."""
    state, share = verdict(pair, allowed), f"{100 * allowed:g}%"
    if state == PASSES:
        return None
    if state == FAILS:
        limit = f"at most {1 + allowed:.3f} times is allowed"
        return Slower("max-memory", share, _memory(pair), limit, "see what changed, or allow more")
    few = pair.rounds < LEAST_ROUNDS
    known = f"{LEAST_ROUNDS} are needed" if few else _memory(pair)
    after = f"not decided after {counted(pair.rounds, 'round')}"
    return Undecided("max-memory", share, after, known, "raise --minutes, or allow more")
