"""The gate: whether a command is slower than another by more than is allowed, and its words."""

from __future__ import annotations

import math

import numpy as np

from ninefold.api.times import interval, shown
from ninefold.errors import ConfigError, Failure, Slower
from ninefold.report.numbers import counted
from ninefold.stats import student
from ninefold.stats.verdicts import Pair

PASSES, FAILS, UNDECIDED = "passes", "fails", "undecided"
LEAST, MOST = 3, 20  # rounds: those that a bench has


def share_of(text: str) -> float:
    """The share that `3%` or `0.03` stands for. ValueError for anything else."""
    number = text.strip()
    share = float(number[:-1]) / 100 if number.endswith("%") else float(number)
    if not 0 <= share < 1:
        raise ValueError(f"{text} is no share below 1")
    return share


def verdict(pair: Pair, allowed: float) -> str:
    """What the interval of second / first shows: it is below 1 + allowed, above, or neither."""
    if pair.low is None or pair.high is None:
        return UNDECIDED
    return PASSES if pair.high < 1 + allowed else FAILS if pair.low > 1 + allowed else UNDECIDED


def sentence(pair: Pair, allowed: float, confidence: float, of: str = "time") -> str:
    """What was found, and what it excludes. confidence: of the interval, in percent."""
    ends = {PASSES: f"not slower by {100 * allowed:g} %", UNDECIDED: "no slow-down is excluded"}
    ends[FAILS] = f"slower by more than {100 * allowed:g} %"
    if pair.high is not None:
        most = math.ceil(round(100 * pair.high - 100, 6))
        ends[UNDECIDED] = f"a slow-down above {most} % is excluded"
    found = f"{confidence:.1f} % interval {interval(pair)}"
    return f"{_takes(pair, of)} ({found}): {ends[verdict(pair, allowed)]}"


def failure(
    pair: Pair, allowed: float, confidence: float, minutes: float, of: str = "time"
) -> Failure | None:
    """What ends a gate that does not pass. minutes: those that its rounds took."""
    share, state = f"{100 * allowed:g}%", verdict(pair, allowed)
    if state == FAILS:
        return Slower(
            "max-slowdown",
            share,
            f"{_takes(pair, of)}; at most {1 + allowed:g} is allowed, and the interval is "
            f"{interval(pair)}; see what changed, or allow more",
        )
    rounds = rounds_needed(pair, 1 + allowed, confidence)
    more = f"--minutes {math.ceil(minutes * rounds / pair.n)}, " if rounds else ""
    undecided = ConfigError(
        "max-slowdown",
        share,
        f"not decided after {counted(pair.n, 'repetition')}; the interval is {interval(pair)}; "
        f"{more}a quieter runner, or --undecided pass",
    )
    return None if state == PASSES else undecided


def rounds_needed(pair: Pair, limit: float, confidence: float) -> int | None:
    """How many rounds in all would show on which side of `limit` the ratio is; None above MOST.

    The ratio and the noise of a round are taken to stay as they are. With n rounds, half of the
    interval of the ratio's logarithm is noise * t / sqrt(n), where t is Student's quantile with
    n - 1 degrees of freedom. It has to be shorter than abs(log(ratio / limit)).

    confidence: of the two-sided interval, in percent.
    """
    if not pair.estimate or not pair.low or not pair.high or not LEAST <= pair.n < MOST:
        return None
    rounds = np.arange(2, MOST + 1)
    reach = student.quantile((1 - confidence / 100) / 2, rounds - 1) / np.sqrt(rounds)
    half = math.log(pair.high / pair.low) / 2 * reach / reach[pair.n - 2]
    way = abs(math.log(pair.estimate / limit))
    enough = rounds[(rounds > pair.n) & (half < way)]
    return int(enough[0]) if len(enough) else None


def _takes(pair: Pair, of: str) -> str:
    return f"{pair.second} takes {shown(pair.estimate)} of {pair.first}'s {of}"
