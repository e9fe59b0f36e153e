"""The gate: whether a command is slower than another by more than is allowed, and its words."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from ninefold.answer.needed import rounds_for_side
from ninefold.answer.words import interval, may_be, shown
from ninefold.errors import Failure, Slower, Undecided
from ninefold.numbers import counted
from ninefold.stats.statistics import estimate
from ninefold.stats.verdicts import Pair, Settings
from ninefold.types import LEAST_ROUNDS

PASSES, FAILS, UNDECIDED = "passes", "fails", "undecided"


def verdict(pair: Pair, allowed: float) -> str:
    """What the interval of the speedup shows: it is above the least allowed, below, or neither."""
    if pair.low is None or pair.high is None:
        return UNDECIDED
    least = least_speedup(allowed)
    return PASSES if pair.low > least else FAILS if pair.high < least else UNDECIDED


def least_speedup(allowed: float) -> float:
    """The speedup of what takes as much longer as is allowed, a share."""
    return 1 / (1 + allowed)


def sentence(pair: Pair, allowed: float, settings: Settings, what: str = "") -> str:
    """The verdict, and what it rests on. what: in which else than time."""
    state, share = verdict(pair, allowed), f"{100 * allowed:g} %"
    found = {
        PASSES: f"{pair.second} is not {share} slower than {pair.first}{what}",
        FAILS: f"{pair.second} is more than {share} slower than {pair.first}{what}",
        UNDECIDED: f"{may_be(pair)}{what}, and {share} slower is allowed",
    }[state]
    sure = f"{shown(pair.speedup)}; {settings.confidence:g} % interval {interval(pair)}"
    return f"Gate {state}: {found} ({sure})."


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


def memory_failure(
    names: Sequence[str], memory: Mapping[str, Mapping[int, int]], allowed: float
) -> Failure | None:
    """What ends a gate on memory that does not pass, by Student's interval of the ratio by round.

    names: of the first command and the second. memory: bytes, by command and round. allowed: by
    which share of the first's memory the second may take more.
    """
    first, second = names
    one, other = memory[first], memory[second]
    known = estimate({n: math.log(other[n] / one[n]) for n in one.keys() & other.keys()})
    share, most, rounds = f"{100 * allowed:g}%", math.log1p(allowed), known.n
    after = f"not decided after {counted(rounds, 'round')}"
    if rounds < LEAST_ROUNDS or known.mean is None or known.low is None or known.high is None:
        more = f"{LEAST_ROUNDS} are needed"
        return Undecided("max-memory", share, after, more, "raise --minutes")
    takes = f"{second} takes {math.exp(known.mean):.3f} times the memory of {first}"
    if known.high <= most:
        return None
    if known.low > most:
        limit = f"at most {1 + allowed:.3f} times is allowed"
        return Slower("max-memory", share, takes, limit, "see what changed, or allow more")
    limit = f"{takes}, {math.exp(known.low):.3f} to {math.exp(known.high):.3f}"
    return Undecided("max-memory", share, after, limit, "raise --minutes, or allow more")
