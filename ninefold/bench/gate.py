"""The gate: whether a command is slower than another by more than is allowed, and its words."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from ninefold.errors import Failure, Slower, Undecided
from ninefold.numbers import counted
from ninefold.stats.needed import number_needed
from ninefold.stats.statistics import estimate
from ninefold.stats.verdicts import Pair, Settings
from ninefold.tournament.budget import MAX_ROUNDS
from ninefold.tournament.times import excluded, interval, shown
from ninefold.types import LEAST_ROUNDS

PASSES, FAILS, UNDECIDED = "passes", "fails", "undecided"
SAID = {PASSES: "passes", FAILS: "fails", UNDECIDED: "is undecided"}


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
    """What was found, and what it excludes. what: in which else than time."""
    state, share = verdict(pair, allowed), f"{100 * allowed:g} %"
    if state != UNDECIDED:
        end = f"not slower by {share}" if state == PASSES else f"slower by more than {share}"
    else:
        end = excluded(pair)
    return f"{_is(pair, what)} ({settings.confidence:g} % interval {interval(pair)}): {end}"


def failure(pair: Pair, allowed: float, minutes: float, what: str = "") -> Failure | None:
    """What ends a gate that does not pass. minutes: those that its rounds took."""
    share, state, found = f"{100 * allowed:g}%", verdict(pair, allowed), interval(pair)
    if state == PASSES:
        return None
    if state == FAILS:
        return Slower(
            "max-slowdown",
            share,
            f"{_is(pair, what)}",
            f"at least {shown(least_speedup(allowed))} is allowed, and the interval is {found}",
            "see what changed, or allow more",
        )
    rounds = rounds_needed(pair, least_speedup(allowed))
    more = f"--minutes {math.ceil(minutes * rounds / pair.rounds)}, " if rounds else ""
    return Undecided(
        "max-slowdown",
        share,
        f"not decided after {counted(pair.rounds, 'round')}",
        f"the interval is {found}",
        f"{more}a quieter runner, or more to be allowed",
    )


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
    said = f"{second} takes {math.exp(known.mean):.3f} times the memory of {first}"
    if known.high <= most:
        return None
    if known.low > most:
        found = f"at most {1 + allowed:.3f} times is allowed"
        return Slower("max-memory", share, said, found, "see what changed, or allow more")
    found = f"{said}, {math.exp(known.low):.3f} to {math.exp(known.high):.3f}"
    return Undecided("max-memory", share, after, found, "raise --minutes, or allow more")


def rounds_needed(pair: Pair, limit: float) -> int | None:
    """How many rounds in all would show on which side of `limit` the speedup is; None: too many.

    It is right in nine of ten cases (benchmarks/log/statistics.md).
    """
    if not pair.speedup or not pair.low or not pair.high or pair.rounds < LEAST_ROUNDS:
        return None
    half = math.log(pair.high / pair.low) / 2
    return number_needed(pair.rounds, half, abs(math.log(pair.speedup / limit)), MAX_ROUNDS)


def _is(pair: Pair, what: str) -> str:
    return f"{pair.second} is {shown(pair.speedup)} times as fast as {pair.first}{what}"
