"""The gates: whether a command is slower than another, or takes more memory, by more than is
allowed, and their words."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from ninefold.answer.needed import rounds_for_side
from ninefold.answer.words import interval, may_be, shown
from ninefold.errors import Failure, Slower, Undecided
from ninefold.numbers import counted
from ninefold.stats.statistics import estimate
from ninefold.stats.verdicts import Estimate, Pair, Settings
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


def failure(pair: Pair, allowed: float, minutes: float, what: str = "") -> Failure | None:
    """What ends a gate that does not pass. minutes: those that its rounds took."""
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
    rounds = rounds_for_side(pair, least_speedup(allowed))
    more = f"--minutes {math.ceil(minutes * rounds / pair.rounds)}, " if rounds else ""
    wrong = f"not decided after {counted(pair.rounds, 'round')}"
    do = f"{more}a quieter runner, or more to be allowed"
    return Undecided("max-slowdown", share, wrong, f"the interval is {known}", do)


@dataclass(frozen=True)
class MemoryRatio:
    """How many times the first command's peak of memory the second has: logarithms, by rounds."""

    first: str
    second: str
    known: Estimate

    def verdict(self, allowed: float) -> str:
        """What its interval shows. allowed: by which share the second may take more."""
        low, high, most = self.known.low, self.known.high, math.log1p(allowed)
        if self.known.n < LEAST_ROUNDS or low is None or high is None:
            return UNDECIDED
        return PASSES if high <= most else FAILS if low > most else UNDECIDED

    def __str__(self) -> str:
        mean, low, high = self.known.mean, self.known.low, self.known.high
        if mean is None:
            return f"the memory of {self.second} is not known"
        said = f"{self.second} takes {math.exp(mean):.3f} times the memory of {self.first}"
        if self.known.n < LEAST_ROUNDS or low is None or high is None:
            return said
        return f"{said}, {math.exp(low):.3f} to {math.exp(high):.3f}"

    def failure(self, allowed: float) -> Failure | None:
        """What ends a gate that does not pass."""
        state, share = self.verdict(allowed), f"{100 * allowed:g}%"
        if state == PASSES:
            return None
        if state == FAILS:
            limit = f"at most {1 + allowed:.3f} times is allowed"
            return Slower("max-memory", share, str(self), limit, "see what changed, or allow more")
        rounds = self.known.n
        known = str(self) if rounds >= LEAST_ROUNDS else f"{LEAST_ROUNDS} are needed"
        after = f"not decided after {counted(rounds, 'round')}"
        return Undecided("max-memory", share, after, known, "raise --minutes, or allow more")


def memory_ratio(names: Sequence[str], memory: Mapping[str, Mapping[int, int]]) -> MemoryRatio:
    """Compare the memory of two commands. memory: bytes, by command and round."""
    first, second = names
    one, other = memory.get(first, {}), memory.get(second, {})
    logs = {n: math.log(other[n] / one[n]) for n in one.keys() & other.keys()}
    return MemoryRatio(first, second, estimate(logs))
