"""The gate: whether a command is slower than another by more than is allowed, and its words."""

from __future__ import annotations

import math

import numpy as np

from ninefold.api.times import interval, shown
from ninefold.errors import Failure, Slower, Undecided
from ninefold.report.numbers import counted
from ninefold.stats import student
from ninefold.stats.verdicts import Pair
from ninefold.tournament.budget import LEAST_ROUNDS, MAX_ROUNDS

PASSES, FAILS, UNDECIDED = "passes", "fails", "undecided"
SAID = {PASSES: "passes", FAILS: "fails", UNDECIDED: "is undecided"}


def verdict(pair: Pair, allowed: float) -> str:
    """What the interval of second / first shows: it is below 1 + allowed, above, or neither."""
    if pair.low is None or pair.high is None:
        return UNDECIDED
    return PASSES if pair.high < 1 + allowed else FAILS if pair.low > 1 + allowed else UNDECIDED


def sentence(pair: Pair, allowed: float, confidence: float, of: str = "time") -> str:
    """What was found, and what it excludes. confidence: of the interval, in percent."""
    state, share = verdict(pair, allowed), f"{100 * allowed:g} %"
    if state != UNDECIDED:
        end = f"not slower by {share}" if state == PASSES else f"slower by more than {share}"
    elif pair.high is None:
        end = "no slow-down is excluded"
    else:
        end = f"a slow-down above {math.ceil(round(100 * pair.high - 100, 6))} % is excluded"
    return f"{_takes(pair, of)} ({confidence:.1f} % interval {interval(pair)}): {end}"


def failure(
    pair: Pair, allowed: float, confidence: float, minutes: float, of: str = "time"
) -> Failure | None:
    """What ends a gate that does not pass. minutes: those that its rounds took."""
    share, state, found = f"{100 * allowed:g}%", verdict(pair, allowed), interval(pair)
    if state == PASSES:
        return None
    if state == FAILS:
        return Slower(
            "max-slowdown",
            share,
            f"{_takes(pair, of)}; at most {1 + allowed:g} is allowed, and the interval is {found}; "
            "see what changed, or allow more",
        )
    rounds = rounds_needed(pair, 1 + allowed, confidence)
    more = f"--minutes {math.ceil(minutes * rounds / pair.n)}, " if rounds else ""
    return Undecided(
        "max-slowdown",
        share,
        f"not decided after {counted(pair.n, 'repetition')}; the interval is {found}; {more}a "
        "quieter runner, or --undecided pass",
    )


def rounds_needed(pair: Pair, limit: float, confidence: float) -> int | None:
    """How many rounds in all would show on which side of `limit` the ratio is; None: too many.

    The ratio and the noise of a round are taken to stay as they are. With n rounds, half of the
    interval of the ratio's logarithm is noise * t / sqrt(n), where t is Student's quantile with
    n - 1 degrees of freedom. It has to be shorter than abs(log(ratio / limit)).

    confidence: of the two-sided interval, in percent.
    """
    if not pair.estimate or not pair.low or not pair.high or pair.n < LEAST_ROUNDS:
        return None
    rounds = np.arange(2, MAX_ROUNDS + 1)
    reach = student.quantile((1 - confidence / 100) / 2, rounds - 1) / np.sqrt(rounds)
    half = math.log(pair.high / pair.low) / 2 * reach / reach[pair.n - 2]
    way = abs(math.log(pair.estimate / limit))
    enough = rounds[(rounds > pair.n) & (half < way)]
    return int(enough[0]) if len(enough) else None


def _takes(pair: Pair, of: str) -> str:
    return f"{pair.second} takes {shown(pair.estimate)} of {pair.first}'s {of}"
